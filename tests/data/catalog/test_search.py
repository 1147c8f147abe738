"""The search for data sets in folders and on the Hugging Face hub."""

import re

import numpy as np
import pytest

import fedmos as fm
from fedmos.data import datasets
from fedmos.data.catalog import CATALOG, characters, hub
from helpers.sources import PARTS, hub_images, marked, same, small, write_cifar, write_idx, write_npz, write_parquet

pytestmark = pytest.mark.usefixtures("home")


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


def test_the_error_lists_the_places_searched_and_what_to_do(home):
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


def test_included_data_sets_take_no_root(tmp_path):
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


@pytest.mark.parametrize("name", ["digits", "mnist"])
@pytest.mark.parametrize("root", [0, True, ["a"]], ids=repr)
def test_a_root_that_is_no_path_is_refused(name, root):
    with pytest.raises(ValueError, match=f"load: 'root' must be a path, got {re.escape(repr(root))}"):
        fm.datasets.load(name, root)
