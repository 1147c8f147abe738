"""Large vectors: uploads on disk, messages that share the memory of tensors, the same bits as in memory."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from fedmos.core.flat_model import FlatModel
from fedmos.flower import wire
from fedmos.flower.channel import MessageChannel
from fedmos.flower.upload_spool import SpooledVectors, UploadSpool
from helpers.flower_network import carried
from helpers.flower_runs import EVERYONE, SELECTORS, arguments, assert_same


@pytest.fixture
def small_is_large(monkeypatch):
    """Stores vectors of 100 bytes and more on disk; notes their shapes."""
    stored, append = [], UploadSpool._append
    monkeypatch.setattr(wire, "LARGE", 100)
    monkeypatch.setattr(UploadSpool, "_append", lambda self, v: stored.append(v.shape) or append(self, v))
    return stored


@pytest.mark.parametrize(
    ("algorithm", "selection", "changes"),
    [
        (fm.Scaffold(lr=0.1), EVERYONE, {}),
        (fm.Mime(lr=0.1, beta=0.6), fm.Uniform(m=3), {}),
        (fm.FedAvg(lr=0.1), SELECTORS["OCS"], {}),
        (fm.FedAvg(lr=0.1), EVERYONE, {"aggregation": fm.aggregation.Median()}),
        (fm.FedAvg(lr=0.1), fm.Uniform(m=4), {"engine": "batched", "uplink": fm.codecs.TopK(0.3)}),
    ],
    ids=["Scaffold", "Mime", "OCS", "Median", "TopK"],
)
def test_uploads_on_disk_give_the_same_bits(deployed, small_is_large, algorithm, selection, changes):
    given = arguments(algorithm=algorithm, selection=selection, **changes)
    made = deployed(given)
    assert_same(made.run(), fm.run(**given))
    assert small_is_large
    assert not list((made.folder / "run").glob("tmp*"))


def test_vectors_are_read_as_they_were_stored(tmp_path):
    made = {"a": torch.randn(2**20 + 3, dtype=torch.float64), "b": torch.arange(3), "c": torch.tensor(2.0)}
    spool = UploadSpool(tmp_path)
    spool.store({"a": torch.ones(2**20)})
    more = SpooledVectors.of(spool.store(made), {"d": torch.ones(2)})
    assert list(more) == ["a", "b", "c", "d"]
    assert all(torch.equal(more[name], v) for name, v in made.items())
    first = more["a"]
    first.zero_()  # a reader's own
    assert torch.equal(more["a"], made["a"])
    assert not list(tmp_path.iterdir())  # files without names end with the process


def test_names_of_stored_vectors_are_looked_up_without_reading_them(tmp_path, monkeypatch):
    stored = UploadSpool(tmp_path).store({"a": torch.ones(2**20), "b": torch.ones(2)})
    monkeypatch.setattr(UploadSpool, "read", lambda *given: pytest.fail("a vector is read"))
    assert "a" in stored
    assert "c" not in stored
    assert stored.stores("a")
    assert not stored.stores("b")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists the open files of a process there")
def test_a_cohort_needs_one_open_file(tmp_path, small_is_large):
    """It can be larger than the number of files that a process may open, which is 1024 by default."""
    before = len(os.listdir("/proc/self/fd"))
    spool = UploadSpool(tmp_path)
    vectors = [spool.store({"x": torch.full((100,), float(i)), "c": torch.full((30,), -1.0)}) for i in range(50)]
    assert len(small_is_large) == 100
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert all(torch.equal(v["x"], torch.full((100,), float(i))) for i, v in enumerate(vectors))
    del spool, vectors
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_message_shares_the_memory_of_large_tensors(small_is_large):
    x = torch.arange(100.0)
    record = wire.pack({"x": x})
    x[0] = 7.0
    received = wire.vectors_in(wire.compose({}, record), {"x": (100,)}, torch.float32)
    assert received["x"].data_ptr() == x.data_ptr()
    assert received["x"][0] == 7.0


def test_replies_to_a_large_model_are_pulled_one_by_one(deployed, small_is_large):
    made = deployed(arguments(selection=EVERYONE))
    asked, pull = [], made.network.pull_messages
    made.network.pull_messages = lambda ids: asked.append(len(list(ids))) or pull(ids)
    made.run()
    assert set(asked) == {1}


def test_a_reply_is_not_held_while_the_next_one_is_pulled():
    class Grid:
        """Makes replies, and notes how many of the earlier ones are still there."""

        def __init__(self) -> None:
            self.made, self.held = [], []

        def pull_messages(self, ids):
            self.held.append(sum(made() is not None for made in self.made))
            reply = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=ids[0]))
            self.made.append(weakref.ref(reply))
            return [reply]

    grid = Grid()
    for _, reply in MessageChannel(grid, one_by_one=True).pull(["1", "2", "3"]):
        del reply
    assert grid.held == [0, 0, 0]


def test_a_deployment_has_the_given_model_in_memory_once(deployed):
    """Server and clients share the memory of its parameters and leave their values as they are."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model = FlatModel(module, torch.device("cpu"), torch.float32, shares=True)
    assert [p.data_ptr() for p in model.trained] == [p.data_ptr() for p in module.parameters()]
    assert model.initial().data_ptr() != model.trained[0].data_ptr()
    given = arguments(selection=EVERYONE)
    shape = given["data"].x.shape[1:]
    given["model"] = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape.numel(), 10))
    before = [p.detach().clone() for p in given["model"].parameters()]
    assert_same(deployed(given).run(), fm.run(**given))
    assert all(torch.equal(p, v) for p, v in zip(given["model"].parameters(), before, strict=True))


def test_what_is_packed_is_carried():
    from flwr.app import Message

    tensors = {"x": torch.randn(7), "none": torch.zeros(0), "n": torch.tensor(3.0)}
    message = Message(wire.compose({"round": 1}, wire.pack(tensors)), 1, wire.TRAIN)
    received = wire.vectors_in(carried(message).content, {n: tuple(v.shape) for n, v in tensors.items()}, torch.float32)
    assert all(torch.equal(received[name], v) for name, v in tensors.items())
