"""Faults of disks, versions and client state, in simulated time: no round is lost, and the bits are the simulation's."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Message

from fedmos.flower import client_folder, wire
from fedmos.flower.members.changes import Change, write_order
from fedmos.storage import files
from fedmos.storage.files import StorageError
from helpers.flower_runs import EVERYONE, arguments, assert_same, federation

SCAFFOLD = {"algorithm": fm.Scaffold(lr=0.1), "selection": EVERYONE, "data": federation(3)}
WHOLE = {"system": fm.System(quorum=1.0, deadline=60.0)}


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def same_run(found: fm.Result, expected: fm.Result) -> None:
    """The bits and cohorts of a run without the fault, whatever was sent again."""
    assert torch.equal(found.params, expected.params)
    assert torch.equal(found.server_state["c"], expected.server_state["c"])
    assert [r.cohort for r in found.history] == [r.cohort for r in expected.history]
    assert not any(r.late or r.abandoned for r in found.history)


def test_the_disk_of_the_server_is_full(deployed, monkeypatch):
    """The run stops with an error; the last checkpoint is intact, and a new start continues the run."""
    made = deployed(arguments(**SCAFFOLD))

    def fill(record: Any) -> None:
        if record.round == 2:
            monkeypatch.setattr(files, "_write_all", full)

    with pytest.raises(StorageError, match=r"Cannot write a checkpoint of round 2 .* No space left on device; earlier"):
        made.run(callbacks=[fill])
    monkeypatch.undo()
    assert len(fm.Result.load(made.folder / "run").history) == 1
    assert_same(made.run(), fm.run(**arguments(**SCAFFOLD)))


def test_the_disk_of_a_client_is_full_for_an_hour(deployed, clock, monkeypatch):
    """The client's app cannot store its state. The round waits for it, and asks it again until there is room."""
    made, began = deployed(arguments(**SCAFFOLD, **WHOLE)), []
    write = client_folder.write_tensors

    def write_tensors(path: Path, *given: Any, **options: Any) -> None:
        if path.parts[-3] == "1" and path.name == "state-1.safetensors":
            began[:] = began or [clock.now]
            if clock.now - began[0] < 3600:
                full()
        write(path, *given, **options)

    monkeypatch.setattr(client_folder, "write_tensors", write_tensors)
    same_run(made.run(), fm.run(**arguments(**SCAFFOLD)))
    assert clock.now - began[0] > 3600


@pytest.mark.parametrize("what", ["fedmos", "protocol"])
def test_a_client_of_another_version(deployed, clock, caplog, monkeypatch, what):
    """It is refused when it connects, the round waits and names it, and goes on when it is upgraded."""
    made = deployed(arguments(**SCAFFOLD, **WHOLE))
    node, listed = made.network.nodes[102], made.network.get_nodes
    answer, place = (
        node.answer,
        {"fedmos": "fedmos.flower.deployment.__version__", "protocol": "fedmos.flower.wire.PROTOCOL"},
    )

    def old(message: Message) -> Message:
        if clock.now > 1000 + 600:
            return answer(message)
        with monkeypatch.context() as patch:
            patch.setattr(place[what], "0.0.1" if what == "fedmos" else 0)
            message.content["fedmos"]["protocol"] = wire.PROTOCOL
            return answer(message)

    def get_nodes() -> Any:
        node.starts = 1 + (clock.now > 1000 + 600)
        return listed()

    node.answer, made.network.get_nodes = old, get_nodes
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    same_run(result, fm.run(**arguments(**SCAFFOLD)))
    reason = {
        "fedmos": "its configuration, model or fedmos version differs from the server's",
        "protocol": "it uses protocol 0 instead of 1; use the same fedmos version everywhere",
    }[what]
    assert f"Refused node 102: {reason}" in caplog.text
    waits = "".join(line for line in caplog.messages if line.startswith("Round 1 waits"))
    assert ": 2" in waits
    assert (f"2 (refused: {reason}" in waits) == (what == "fedmos")  # of another protocol, the name cannot be read


@pytest.mark.parametrize("harm", ["gone", "cut", "bit"])
def test_the_state_of_a_client_is_damaged_and_restored(deployed, caplog, harm):
    """From a backup: the client is left out with a reason until then. Or it starts anew by a command."""
    made = deployed(arguments(**SCAFFOLD, rounds=6), quarantine="off")

    def damage(record: Any) -> None:
        path = made.client_folder("1") / f"state-{record.round - 1}.safetensors"
        if record.round == 2:
            backups[path] = path.read_bytes()
            path.unlink()
            if harm != "gone":
                content = backups[path]
                path.write_bytes(content[:-9] if harm == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
        if record.round == 4:
            for path, content in backups.items():
                path.write_bytes(content)

    backups: dict[Path, bytes] = {}
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run(callbacks=[damage])
    assert [list(r.refused) for r in result.history] == [[], [], ["1"], ["1"], [], []]
    assert "its stored state is missing or damaged" in result.history[2].refused["1"]
    assert caplog.text.count("`fedmos deploy reset 1` in the run folder") == 1
    assert not any(r.abandoned for r in result.history)


def test_a_client_whose_state_is_lost_starts_anew(deployed):
    made = deployed(arguments(**SCAFFOLD, rounds=6))

    def lose(record: Any) -> None:
        if record.round == 2:
            for path in made.client_folder("1").iterdir():
                path.unlink()
        if record.round == 3:
            write_order(made.folder / "run", Change(kind="reset", client="1"))

    result = made.run(callbacks=[lose])
    assert [list(r.refused) for r in result.history] == [[], [], ["1"], [], [], []]
    assert result.history[3].changes == ["1: reset"]
