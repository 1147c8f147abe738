"""Nodes and servers that die and come back."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Message
from safetensors.torch import load_file

from fedmos.flower import reply_collector, wire
from fedmos.flower.client_folder import ClientFolder
from helpers.flower_runs import BAD, EVERYONE, ROUNDS, SELECTORS, arguments, assert_same


class Killed(BaseException):
    """What nobody catches."""


@pytest.mark.parametrize(
    ("after", "algorithm"),
    [(1, fm.Scaffold(lr=0.1)), (8, fm.FedHBM(lr=0.1)), (12, fm.Scaffold(lr=0.1)), (14, fm.Mime(lr=0.1, beta=0.6))],
    ids=lambda v: type(v).__name__ if isinstance(v, fm.Algorithm) else str(v),
)
def test_a_server_that_is_killed(deployed, after, algorithm):
    """Between any two replies; clients that have done the round's work already do it again, from the state before."""
    given = arguments(algorithm=algorithm, selection=SELECTORS["pow-d"])
    made, expected = deployed(given), fm.run(**given)
    count = 0

    def tamper(request: Message, reply: Message) -> Message:
        nonlocal count
        count += request.metadata.message_type != wire.HELLO
        if count == after:
            count += 1
            raise Killed
        return reply

    made.network.tamper = tamper
    with pytest.raises(Killed):
        made.run()
    assert_same(made.run(), expected)
    assert_same(made.run(), expected)  # finished: read from the folder


def test_a_server_that_is_killed_in_every_round(deployed):
    given = arguments(algorithm=fm.Scaffold(lr=0.1))
    made, killed = deployed(given), set()

    def tamper(request: Message, reply: Message) -> Message:
        t = wire.round_of(request.content)
        if request.metadata.message_type == wire.TRAIN and t not in killed:
            killed.add(t)
            raise Killed
        return reply

    made.network.tamper = tamper
    for _ in range(ROUNDS):
        with pytest.raises(Killed):
            made.run()
    assert_same(made.run(), fm.run(**given))


@pytest.mark.parametrize("trained", [False, True])
def test_a_node_that_is_restarted_mid_round(deployed, monkeypatch, trained):
    """The request that it took with it is sent again, whether or not its work was done."""
    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE)
    made, restarted = deployed(given), set()
    node = made.network.nodes[102]
    answer = node.answer

    def dying(message: Message) -> Message:
        t = wire.round_of(message.content)
        if message.metadata.message_type == wire.TRAIN and t in (1, 3) and t not in restarted:
            restarted.add(t)
            if trained:
                answer(message)
            node.starts += 1
            lost.append(message.metadata.message_id)
        return answer(message)

    lost: list[str] = []
    node.answer = dying
    made.network.tamper = lambda request, reply: None if request.metadata.message_id in lost else reply
    result, expected = made.run(), fm.run(**given)
    assert restarted == {1, 3}
    assert torch.equal(result.params, expected.params)
    assert [r.cohort for r in result.history] == [r.cohort for r in expected.history]
    assert result.history[1].bytes_down > expected.history[1].bytes_down  # what was sent twice is counted twice


def test_a_node_that_is_away_for_a_moment(deployed, monkeypatch):
    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)
    given = arguments(algorithm=fm.FedHBM(lr=0.1, beta=0.6), selection=EVERYONE, rounds=3)
    made = deployed(given, rejoin=30.0)
    node, looks = made.network.nodes[103], 0

    def tamper(request: Message, reply: Message) -> Message:
        nonlocal looks
        if wire.round_of(request.content) == 1 and request.metadata.message_type == wire.TRAIN and not looks:
            looks, node.online = 1, False
        return reply

    listed = made.network.get_nodes

    def get_nodes() -> Any:
        nonlocal looks
        if looks:
            looks += 1
            if looks == 20:
                node.starts, node.online = 2, True
        return listed()

    made.network.tamper, made.network.get_nodes = tamper, get_nodes
    assert torch.equal(made.run().params, fm.run(**given).params)
    assert node.starts == 2


def test_a_disconnected_client_delays_one_round_by_rejoin(deployed, monkeypatch, clock):
    """Later rounds do not wait for it until it is back."""
    given = arguments(selection=EVERYONE, rounds=6, callbacks=[lambda record: after(record)])
    made = deployed(given, rejoin=2.0, wait=0.1)
    node = made.network.nodes[101]
    node.online = False
    ends = []

    def after(record: Any) -> None:
        node.online = record.round >= 4
        ends.append(clock.now)

    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)
    start = clock.now
    result = made.run()
    assert [record.late for record in result.history][:4] == [[BAD]] * 4
    assert [record.late for record in result.history][-1] == []
    first, *others = (end - begin for begin, end in zip([start, *ends], ends, strict=False))
    assert 1.9 <= first < 2.2
    assert max(others[:3]) <= 0.01


def test_state_on_the_clients_disk(deployed):
    """Of each client the state of its last rounds, and nothing older; without it, the client is refused."""
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE)
    made = deployed(given, keep_checkpoints=2)
    made.run()
    folder = made.client_folder("2")
    assert sorted(path.name for path in folder.iterdir()) == [f"state-{t}.safetensors" for t in (1, 2, 3)]
    assert folder.name == json.loads((made.folder / "run" / "deployment.json").read_text())["run"]
    expected = fm.run(**given)
    kept = load_file(folder / "state-3.safetensors")
    assert {name: torch.equal(v, kept[name]) for name, v in expected.client_state(2).items()} == {"c_i": True}


def test_what_a_killed_client_left_half_written(tmp_path):
    folder, own = ClientFolder(tmp_path, "a", "0" * 32), {"v": torch.ones(3)}
    folder.save_state(0, -1, own)
    path = tmp_path / "a" / ("0" * 32)
    old, new = path / ".state-1.safetensors.77.partial", path / ".state-1.safetensors.78.partial"
    for half in (old, new):
        half.write_bytes(b"half")
    os.utime(old, (0, 0))
    folder.save_state(1, 0, own)
    assert not old.exists()
    assert new.exists()  # somebody may be at it
    assert torch.equal(folder.load_state(1, {"v": torch.zeros(3)})["v"], own["v"])


@pytest.mark.parametrize("damage", ["gone", "cut", "bit", "another run's", "another client's"])
def test_damaged_state(deployed, caplog, damage):
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE, rounds=2)
    made = deployed(given)
    made.run()
    folder = made.client_folder("2")
    path = folder / "state-1.safetensors"
    raw = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "bit":
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif damage == "another run's":
        path.write_bytes(raw.replace(folder.name.encode(), b"0" * 32))
    else:
        other = made.client_folder("3")
        path.write_bytes((other / path.name).read_bytes())
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run(rounds=3)
    assert len(result.history) == 3
    said = {"gone": "does not exist", "cut": "cannot be read", "bit": "is damaged"}.get(
        damage, "belongs to another run, client or round"
    )
    assert any("client '2'" in line and "its stored state is missing or damaged" in line for line in caplog.messages)
    assert said in caplog.text  # in the client's own log
    assert not any("client '2'" in line and said in line for line in caplog.messages)
