"""Every format of a data set gives the same images."""

import re

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.data import datasets
from fedmos.data.catalog import CATALOG
from fedmos.data.natural import NATURAL
from helpers.sources import PARTS, png, same, small, write_cifar, write_idx, write_npz, write_parquet

pytestmark = pytest.mark.usefixtures("home")


def test_the_table_of_sources_is_consistent():
    assert datasets.names() == ["digits", *CATALOG, *NATURAL]
    assert len(CATALOG) == 9
    for source in CATALOG.values():
        assert source.labels is None or len(source.labels) == source.classes == len(set(source.labels))
        assert source.limit >= 4 * (source.train + source.test) * source.row_bytes
        assert source.checksum is None or re.fullmatch("[0-9a-f]{64}", source.checksum)


@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10", "cifar100"])
def test_every_format_gives_the_same_images(name, tmp_path):
    arrays = small(name)
    loaded = fm.datasets.load(name, write_npz(tmp_path, name, arrays))
    x = arrays["x_train"]
    assert loaded.x_train.shape == (25, *CATALOG[name].shape)
    assert np.array_equal(loaded.x_train, x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1))
    assert np.array_equal(loaded.y_test, arrays["y_test"])
    assert (loaded.x_train.dtype, loaded.y_train.dtype) == (np.uint8, np.int64)
    assert loaded.classes == CATALOG[name].classes
    assert loaded.normalize == CATALOG[name].normalize

    roots = []
    write_parquet(tmp_path / "parquet" / (CATALOG[name].config or "data"), name, arrays)
    roots.append(tmp_path / "parquet")
    if name.endswith("mnist"):
        for i, (dot, gz) in enumerate((("-", True), (".", False))):
            write_idx(tmp_path / f"idx{i}" / "raw", arrays, dot, gz)
            roots.append(tmp_path / f"idx{i}")
        roots.append(tmp_path / "idx0" / "raw" / "t10k-labels-idx1-ubyte.gz")
    else:
        folder = {"cifar10": "CIFAR-10-batches-bin", "cifar100": "cifar-100-binary"}[name]
        write_cifar(tmp_path / "binary" / folder, name, arrays)
        roots += [tmp_path / "binary", tmp_path / "binary" / folder]
    for root in roots:
        assert same(fm.datasets.load(name, root), loaded), root


def test_arrays_in_other_layouts_and_types_are_brought_to_ours(tmp_path):
    arrays = small("cifar10")
    loaded = fm.datasets.load("cifar10", write_npz(tmp_path, "cifar10", arrays))
    variants = {
        "first": {"x_train": np.moveaxis(arrays["x_train"], -1, 1)},
        "fortran": {"x_train": np.asfortranarray(arrays["x_train"])},
        "wide": {"x_train": arrays["x_train"].astype(">i4"), "y_train": arrays["y_train"][:, None].astype(">i8")},
    }
    for kind, change in variants.items():
        (tmp_path / kind).mkdir()
        assert same(fm.datasets.load("cifar10", write_npz(tmp_path / kind, "cifar10", arrays | change)), loaded), kind
    fractions = {k: (v / 255).astype(np.float64) if k[0] == "x" else v for k, v in arrays.items()}
    (tmp_path / "fractions").mkdir()
    other = fm.datasets.load("cifar10", write_npz(tmp_path / "fractions", "cifar10", fractions))
    assert other.x_train.dtype == np.float32
    a, b = (d.normalize(torch.from_numpy(d.x_train), torch.float32) for d in (loaded, other))
    torch.testing.assert_close(a, b)


def test_owners_are_read_from_files(tmp_path):
    arrays = small("mnist", train=6)
    cases = [
        ({"owner": np.array([3, 3, 1, 10**15, 1, 3])}, [1, 1, 0, 2, 0, 1], ["1", "3", str(10**15)]),
        ({"owner": np.array(["b", "a", "a", "b", "c", "a"])}, [1, 0, 0, 1, 2, 0], ["a", "b", "c"]),
        ({"owner": np.array([0, 1, 1, 0, 2, 2]), "owners": np.array(["z", "y", "x"])}, [0, 1, 1, 0, 2, 2], list("zyx")),
    ]
    for i, (more, owner, owners) in enumerate(cases):
        (tmp_path / str(i)).mkdir()
        loaded = fm.datasets.load("mnist", write_npz(tmp_path / str(i), "mnist", arrays | more))
        assert loaded.owner.tolist() == owner
        assert loaded.owners == owners
        clients = loaded.partition(fm.partition.Natural())
        assert len(clients) == 3
        assert clients.names == owners


def test_a_table_without_a_test_part_holds_out_one_in_ten_of_every_owner(tmp_path):
    arrays = small("femnist", train=150, test=1)
    arrays["owner"] = np.array(["f0000_14"] * 30 + ["f0001_41"] * 100 + ["f0002_00"] * 20)
    write_parquet(tmp_path / "data", "femnist", arrays, shards=3, parts=("train",))
    loaded = fm.datasets.load("femnist", tmp_path)
    assert (len(loaded.x_train), len(loaded.x_test)) == (135, 15)
    assert np.bincount(loaded.owner).tolist() == [27, 90, 18]
    assert loaded.owners == ["f0000_14", "f0001_41", "f0002_00"]
    everything = np.concatenate([loaded.x_train, loaded.x_test])
    assert len(np.unique(everything.reshape(150, -1), axis=0)) == 150
    one = next(tmp_path.rglob("train-00000*"))
    assert len(fm.datasets.load("femnist", one).x_train) == 45  # one in ten of 30 and of 20


def test_photographs_are_resized_and_grey_ones_get_three_channels(home):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    shapes = [(300, 200, 3), (224, 224, 3), (50, 60)]
    images = [png(rng.integers(0, 256, shape, dtype=np.uint8)) for shape in shapes]
    (home / "gldv2").mkdir()
    for part in PARTS:
        rows = pa.table({"client_id": [7, 8, 7], "image": images, "label": [0, 2027, 5]})
        pq.write_table(rows, home / "gldv2" / f"{part}.parquet")
    loaded = fm.datasets.load("gldv2")
    assert loaded.x_train.shape == (3, 3, 224, 224)
    assert loaded.owners == ["7", "8"]
    assert loaded.classes == 2028
    assert np.array_equal(loaded.x_test[2, 0], loaded.x_test[2, 2])


def test_sentences_become_numbers_and_predict_their_next_word(home):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (home / "stackoverflow").mkdir()
    long = " ".join(["a"] * 25)
    texts = {"train": ["a b a", "b c", "a", long], "test": ["a zebra", "c"]}
    for part, lines in texts.items():
        rows = pa.table({"client_id": ["u", "v", "u", "v"][: len(lines)], "tokens": lines})
        pq.write_table(rows, home / "stackoverflow" / f"{part}.parquet")
    loaded = fm.datasets.load("stackoverflow")
    unknown, begin, end = 10_001, 10_002, 10_003
    assert loaded.classes == 10_004
    assert loaded.x_train.shape == loaded.y_train.shape == (4, 20)
    assert loaded.x_train[0].tolist() == [begin, 1, 2, 1, end] + [0] * 15
    assert loaded.y_train[0].tolist() == [1, 2, 1, end] + [-100] * 16
    assert loaded.x_train[3].tolist() == [begin] + [1] * 19
    assert loaded.y_train[3].tolist() == [1] * 20
    assert loaded.x_test[0, :4].tolist() == [begin, 1, unknown, end]
    assert [loaded.labels[i] for i in (0, 1, 2, 3, 4, unknown, begin, end)] == [
        "<pad>", "a", "b", "c", "", "<unknown>", "<begin>", "<end>",
    ]  # fmt: skip
    assert loaded.owners == ["u", "v"]
    assert isinstance(loaded.y_train, np.memmap)  # as large as the inputs, so it stays on disk
