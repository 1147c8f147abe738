"""Asynchronous deployments: in the order in which updates arrive, the steps of the simulator, to the bit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Message

from fedmos.flower import reply_collector, wire
from fedmos.flower.buffered_backend import BufferedFlowerBackend
from helpers.asynchronous import METHODS, Schedule, options, random_schedule, simulate
from helpers.flower_runs import CLIENTS, Deployed, arguments, federation
from helpers.scripted_network import Script, simulated_seconds

WITHOUT_LOSSES = (0, 4, 8, 12, 16, 20)
FACTS = ("cohort", "weights", "versions", "ages", "late", "bytes_down", "bytes_up", "abandoned", "available", "short")


class Killed(BaseException):
    """What nobody catches."""


def given_by(case: Schedule, algorithm: fm.Algorithm, **changes: Any) -> dict[str, Any]:
    problem = case.problem
    given = {"model": problem.model(), "data": problem.data(), "algorithm": algorithm, "engine": "loop"}
    return given | options(case) | changes


def deploy(folder: Path, given: dict[str, Any]) -> tuple[Deployed, Script]:
    made = Deployed(folder, given)
    return made, Script(made.network, simulated_seconds(given))


def assert_same_steps(got: fm.Result, expected: fm.Result) -> None:
    for mine, theirs in zip(got.history, expected.history, strict=True):
        for fact in FACTS:
            assert getattr(mine, fact) == getattr(theirs, fact), (mine.round, fact)
    assert torch.equal(got.params, expected.params)
    for name, v in expected.server_state.items():
        assert torch.equal(got.server_state[name], v)


@pytest.mark.parametrize(("kind", "seed"), list(zip(METHODS, WITHOUT_LOSSES, strict=True)))
def test_the_steps_of_the_event_queue(tmp_path, clock, kind, seed):
    case = random_schedule(seed)
    x, steps, _ = simulate(kind, case)
    given = given_by(case, kind.algorithm)
    made, _ = deploy(tmp_path, given)
    result = made.run()
    assert_same_steps(result, fm.run(**given))
    for record, step in zip(result.history, steps, strict=True):
        for name in ("cohort", "versions", "ages", "bytes_down", "bytes_up"):
            assert getattr(record, name) == getattr(step, name), (record.round, name)
    np.testing.assert_allclose(result.params.numpy(), x, rtol=1e-9, atol=1e-10)
    times = [record.time for record in result.history]
    assert times == sorted(times)
    assert not list((tmp_path / "run" / "buffer").iterdir())


COMPOSED = {
    "codecs": (
        fm.Scaffold(lr=0.05),
        {"uplink": fm.codecs.ErrorFeedback(fm.codecs.TopK(0.1)), "downlink": fm.codecs.Quantize(8)},
    ),
    "a local optimiser": (fm.FedCM(lr=0.02), {"local": fm.local.AdamW(keep=True)}),
    "a robust rule": (fm.FedAvgM(lr=0.05), {"aggregation": fm.aggregation.Median()}),
    "own parameters": (fm.Scaffold(lr=0.05), {"personal": ["2.*"]}),
    "reports and norms": (fm.FedHBM(lr=0.05), {"selection": fm.UCB(m=1), "update_norms": True}),
}


def composed(name: str, **changes: Any) -> dict[str, Any]:
    algorithm, options = COMPOSED[name]
    given = {
        "algorithm": algorithm,
        "selection": fm.Uniform(m=1),
        "rounds": 6,
        "system": fm.System(speed=fm.LogNormal(median=50, sigma=1)),
        "buffer": fm.Buffer(size=2, concurrency=4),
    }
    return arguments(**given | options | changes)


def kill_before(script: Script, counts: set[int]) -> None:
    """Kill the server before these updates are delivered, each once."""

    def kill(count: int) -> None:
        if count in counts:
            counts.remove(count)
            raise Killed

    script.on_delivery = kill


@pytest.mark.parametrize("name", COMPOSED)
def test_other_options_and_a_server_that_is_killed(tmp_path, clock, name):
    """Updates that had arrived are not asked for again; clients that trained are, for the same model."""
    given = composed(name)
    made, script = deploy(tmp_path, given)
    kills = {0, 1, 4, 7, 10}
    kill_before(script, kills)
    for _ in range(5):
        with pytest.raises(Killed):
            made.run()
    result = made.run()
    expected = fm.run(**given)
    assert not kills
    assert torch.equal(result.params, expected.params)
    facts = [fact for fact in FACTS if not fact.startswith("bytes")]
    for mine, theirs in zip(result.history, expected.history, strict=True):
        assert [getattr(mine, fact) for fact in facts] == [getattr(theirs, fact) for fact in facts]
        assert mine.update_norms == theirs.update_norms
    assert len(set(script.delivered)) == len(script.delivered) == 6 * 2
    assert len(script.asked) > len(set(script.asked))
    assert_same_steps(made.run(), result)  # finished: read from the folder


def test_the_server_remembers_the_clients_that_train_only(tmp_path, clock, monkeypatch):
    """What a client holds is stored on the disk when its update is used."""
    given = composed("codecs", data=federation(8), rounds=12, buffer=fm.Buffer(size=1, concurrency=2))
    phase, remembered, asked = BufferedFlowerBackend.run_phase, [], set()

    async def noting(self: BufferedFlowerBackend, *arguments: Any) -> Any:
        remembered.append(set(self._messages.held._received))
        asked.update(remembered[-1])
        return await phase(self, *arguments)

    monkeypatch.setattr(BufferedFlowerBackend, "run_phase", noting)
    result = deploy(tmp_path, given)[0].run()
    assert torch.equal(result.params, fm.run(**given).params)
    assert max(map(len, remembered)) <= 3
    assert len(asked) > 4


def test_a_damaged_update_is_asked_for_again(tmp_path, clock, caplog):
    given = composed("codecs")
    made, script = deploy(tmp_path, given)
    kill_before(script, {5})
    with pytest.raises(Killed):
        made.run()
    (stored,) = (tmp_path / "run" / "buffer").iterdir()
    raw = stored.read_bytes()
    stored.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    lost = script.delivered[-1]
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert script.delivered.count(lost) == 2
    assert "its client is asked again" in caplog.text
    assert torch.equal(result.params, fm.run(**given).params)


def buffered(**changes: Any) -> dict[str, Any]:
    given = {"selection": fm.Uniform(m=1), "rounds": 5, "buffer": fm.Buffer(size=2, concurrency=CLIENTS)}
    return arguments(**given | changes)


def test_a_client_that_does_not_reply_holds_nobody_up(deployed, clock):
    """Its place is free at its deadline; the server steps meanwhile."""
    made = deployed(buffered(rounds=12, system=fm.System(deadline=30.0)), poll=1.0)
    slow = made.network.nodes[102]
    made.network.tamper = lambda request, reply: None if request.metadata.dst_node_id == slow.number else reply
    start = clock.now
    result = made.run()
    assert not any(record.abandoned for record in result.history)
    assert all(2 not in record.cohort for record in result.history)
    late = [record.time for record in result.history if record.late]
    assert all(30.0 * n <= time <= 30.0 * n + 5 for n, time in enumerate(late, start=1))
    assert result.history[-1].time == pytest.approx(clock.now - start, abs=5.0)


@pytest.mark.parametrize("kind", ["not finite", "a norm out of proportion", "an error"])
def test_a_client_whose_updates_are_refused(deployed, caplog, kind):
    """It counts as lost, and is asked again after the next server step only."""
    asked: list[int] = []

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != wire.TRAIN or request.metadata.dst_node_id != 103:
            return reply
        asked.append(wire.round_of(request.content))
        if kind == "an error":
            from flwr.app import Error

            return Message(Error(121, "anything"), reply_to=request)
        array = next(iter(reply.content["vectors"].values()))
        values = np.frombuffer(array.data, dtype="<f4") * np.float32(np.nan if kind == "not finite" else 1e6)
        array.data = values.astype("<f4").tobytes()
        return reply

    made = deployed(buffered())
    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert len(asked) == len(set(asked)) > 1
    accepted = [record.round for record in result.history if 3 in record.cohort]
    assert accepted == ([1] if kind == "a norm out of proportion" and accepted else [])
    assert sum(record.late.count(3) for record in result.history) >= len(asked) - 1
    assert all(len(record.cohort) == 2 for record in result.history)


def test_an_outage(deployed, clock, monkeypatch):
    """While no client can be reached, the round waits; those that come back start."""
    made = deployed(buffered(rounds=6, callbacks=[lambda record: after(record)]), rejoin=5.0, poll=0.5)
    listed, gone = made.network.get_nodes, [0.0]
    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)

    def after(record: Any) -> None:
        if record.round == 3:
            gone[0] = clock.now

    def get_nodes() -> list[Any]:
        away = gone[0] and clock.now - gone[0] < 100
        for node in made.network.nodes.values():
            node.online = not away
        return listed()

    monkeypatch.setattr(made.network, "get_nodes", get_nodes)
    result = made.run()
    assert len(result.history) == 6
    assert not any(record.abandoned for record in result.history)
    assert result.history[3].time - result.history[2].time > 90


def test_clients_that_return_start_while_others_train(deployed, clock, monkeypatch):
    made = deployed(buffered(rounds=3, buffer=fm.Buffer(size=1, concurrency=6)), rejoin=5.0, poll=0.5, wait=1.0)
    listed, start = made.network.get_nodes, clock.now
    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)

    def get_nodes() -> list[Any]:
        for node in made.network.nodes.values():
            node.online = node.number == 100 or clock.now - start > 50
        return listed()

    monkeypatch.setattr(made.network, "get_nodes", get_nodes)
    made.network.tamper = lambda request, reply: (
        None if request.metadata.dst_node_id == 100 and is_work(request) else reply
    )
    result = made.run()
    assert all(0 not in record.cohort for record in result.history)
    assert 45 < result.history[-1].time < 70


def is_work(request: Message) -> bool:
    return request.metadata.message_type == wire.TRAIN
