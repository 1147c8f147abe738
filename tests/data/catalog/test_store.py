"""The store of prepared data."""

import dataclasses
import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.data import datasets
from fedmos.data.catalog import CATALOG, builder, npz
from helpers import fresh
from helpers.sources import marked, same, small, write_npz

pytestmark = pytest.mark.usefixtures("home")


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


def test_partial_stores_of_killed_processes_are_removed(home):
    for name, age in ((".making-old", 2), (".making-new", 0)):
        (home / "store" / name).mkdir(parents=True)
        then = (home / "store").stat().st_mtime - age * 86_400
        os.utime(home / "store" / name, (then, then))
    write_npz(home, "mnist", small("mnist"))
    fm.datasets.load("mnist")
    assert [path.name for path in stores(home) if path.name.startswith(".")] == [".making-new"]


def test_several_processes_can_build_the_store_at_once(home):
    write_npz(home, "cifar10", small("cifar10", train=3000))
    program = 'import fedmos as fm; print(int(fm.datasets.load("cifar10").x_train.sum()))'
    done = fresh.run_together(program, program, program)
    assert len({process.stdout for process in done}) == 1
    assert all(process.returncode == 0 and process.stdout for process in done), done
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
