"""Outages, in simulated time: rounds wait for clients, and the model is that of a run without the outage."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
import httpx
from flwr.app import Error, Message

from fedmos.flower import outages, wire
from fedmos.flower.channel import OutageError
from fedmos.flower.graceful_stop import StopRequested
from helpers.flower_runs import CLIENTS, EVERYONE, SELECTORS, arguments, assert_same
from helpers.private import gaussian

HOUR = 3600.0
WHOLE = {"system": fm.System(quorum=1.0)}
"""A round waits for its whole cohort. By default, one client suffices, and may have answered before a cut."""


def cut(made: Any, clock: Any, nodes: Any, begin: Callable[[Message], bool], seconds: float) -> list[float]:
    """Disconnect nodes at the first request that `begin` accepts, for some seconds; returns when that was."""
    network, cuts = made.network, []
    answers = {number: network.nodes[number].answer for number in network.nodes}
    listed = network.get_nodes

    def answer(number: int, message: Message) -> Message:
        if not cuts and begin(message):
            cuts.append(clock.now)
            for gone in nodes:
                network.nodes[gone].online = False
        return answers[number](message)

    def get_nodes() -> Any:
        if cuts and clock.now - cuts[0] > seconds:
            for gone in nodes:
                if not network.nodes[gone].online:
                    network.nodes[gone].online, network.nodes[gone].starts = True, network.nodes[gone].starts + 1
        return listed()

    network.get_nodes = get_nodes
    for number, node in network.nodes.items():
        node.answer = lambda message, number=number: answer(number, message)
    return cuts


def in_round(t: int, kind: str = wire.TRAIN) -> Callable[[Message], bool]:
    return lambda message: message.metadata.message_type == kind and wire.round_of(message.content) == t


@pytest.mark.parametrize(
    ("algorithm", "selection", "kind"),
    [
        (fm.Scaffold(lr=0.1), EVERYONE, wire.TRAIN),
        (fm.Mime(lr=0.1, beta=0.6), fm.Uniform(m=3), wire.PREPARE),
        (fm.FedAvg(lr=0.1), SELECTORS["pow-d"], wire.LOSSES),
        (fm.FedAvg(lr=0.1), SELECTORS["OCS"], wire.UPLOAD),
    ],
    ids=["Scaffold", "Mime", "pow-d", "OCS"],
)
def test_a_network_cut_for_two_hours(deployed, clock, caplog, algorithm, selection, kind):
    """All clients at once, in the middle of a round: no round is lost, and the bits are those of the simulation."""
    given = arguments(algorithm=algorithm, selection=selection)
    made = deployed(given | WHOLE)
    cuts = cut(made, clock, list(made.network.nodes), in_round(1, kind), 2 * HOUR)
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert cuts
    expected = fm.run(**given)
    assert torch.equal(result.params, expected.params)
    assert [r.cohort for r in result.history] == [r.cohort for r in expected.history]
    assert not any(r.abandoned or r.late for r in result.history)
    lines = [line for line in caplog.messages if line.startswith("Round 2 waits")]
    assert 100 <= len(lines) <= 2 * 60 + 2  # a line a minute
    assert "Round 2 goes on after an outage of 72" in caplog.text


def test_a_quorum_is_waited_for(deployed, clock):
    """Four of six are gone for an hour, and five are needed."""
    given = arguments(selection=EVERYONE, system=fm.System(quorum=0.75))
    made = deployed(given)
    cut(made, clock, [100, 101, 103, 105], in_round(2), HOUR)
    result = made.run()
    assert_same_model(result, fm.run(**arguments(selection=EVERYONE)))
    assert clock.now - 1000 > HOUR


def test_clients_that_are_missing_after_the_outage_are_left_out(deployed, clock):
    """The quorum is one of six: the round goes on with the clients that are left, as ever."""
    made = deployed(arguments(selection=EVERYONE, rounds=2))
    for number in (100, 101, 102):
        made.network.nodes[number].online = False
    result = made.run()
    assert [r.late for r in result.history] == [[0, 1, 2]] * 2
    assert clock.now - 1000 < 60


def test_no_client_at_the_start(deployed, clock, caplog):
    """The run waits; at the limit it stops with an error, and a later start continues it."""
    given = arguments()
    made = deployed(given, outage_limit=HOUR)
    for node in made.network.nodes.values():
        node.online = False
    with pytest.raises(
        OutageError, match=r"over the 'outage_limit' of 3600 s: .*; start the run again \(fedmos deploy start\)"
    ):
        made.run()
    assert HOUR < clock.now - 1000 < HOUR + 60
    for node in made.network.nodes.values():
        node.online = True
    assert_same(made.run(), fm.run(**given))


def test_the_limit_ends_a_run_in_the_middle_and_a_restart_continues_it(deployed, clock):
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE)
    made = deployed(given | WHOLE, outage_limit=HOUR)
    cut(made, clock, list(made.network.nodes), in_round(2), 3 * HOUR)
    with pytest.raises(OutageError, match="Cannot go on with round 3"):
        made.run()
    assert len(fm.Result.load(made.folder / "run").history) == 2
    clock.now += 3 * HOUR
    assert_same(made.run(), fm.run(**given))


def test_what_can_be_done_about_missing_clients(deployed, clock):
    """Clients of a private run cannot be retired."""
    made = deployed(arguments(privacy=gaussian(), selection=EVERYONE), outage_limit=60.0)
    for node in made.network.nodes.values():
        node.online = False
    with pytest.raises(OutageError, match=r"; start the run again \(fedmos deploy start\) to continue it$"):
        made.run()


def test_without_a_limit_the_run_waits_for_days(deployed, clock):
    made = deployed(arguments(rounds=2) | WHOLE, outage_limit="off")
    cut(made, clock, list(made.network.nodes), in_round(1), 36 * HOUR)
    assert_same_model(made.run(), fm.run(**arguments(rounds=2)))


def test_clients_whose_apps_do_not_answer_are_asked_again(deployed, clock):
    """Their nodes stay connected."""
    given = arguments(selection=EVERYONE, system=fm.System(deadline=60.0, quorum=1.0))
    made, silent_until = deployed(given, poll=1.0), []

    def answer(node: Any, message: Message) -> Message | None:
        if in_round(1)(message) and not silent_until:
            silent_until.append(clock.now + HOUR)
        return None if silent_until and clock.now < silent_until[0] else type(node).answer(node, message)

    for node in made.network.nodes.values():
        node.answer = lambda message, node=node: answer(node, message)
    assert_same_model(made.run(), fm.run(**arguments(selection=EVERYONE)))


def test_the_superlink_is_away(deployed, clock, caplog):
    """Every call of the grid fails for an hour. Requests that it has lost are sent again."""
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE)
    made = deployed(given | WHOLE)
    network, back = made.network, []
    get_nodes, push, pull = network.get_nodes, network.push_messages, network.pull_messages

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*arguments: Any) -> Any:
            if back and clock.now < back[0]:
                raise httpx.ConnectError("Connection refused")
            return call(*arguments)

        return attempt

    def tamper(request: Message, reply: Message) -> Message:
        if in_round(1)(request) and not back:
            back.append(clock.now + HOUR)
        return reply

    network.get_nodes, network.push_messages, network.pull_messages = failing(get_nodes), failing(push), failing(pull)
    network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert_same_model(result, fm.run(**given))
    assert "Cannot reach the SuperLink: Connection refused" in caplog.text


@pytest.mark.parametrize("code", [401, 404])
def test_a_superlink_that_has_forgotten_the_run(deployed, code):
    """As after a restart without a database: the run stops with an error, and a new start continues it."""
    given = arguments()
    made = deployed(given)
    listed, rounds = made.network.get_nodes, []

    def get_nodes() -> Any:
        if rounds:
            request = httpx.Request("POST", "https://superlink")
            raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(code, request=request))
        return listed()

    made.network.get_nodes = get_nodes
    made.given["callbacks"] = [lambda record: rounds.append(record.round) if record.round == 2 else None]
    made.network.tamper = lambda request, reply: None if rounds else reply
    with pytest.raises(
        OutageError, match=r"does not know this run any more, .*start the run again \(fedmos deploy start\)"
    ):
        made.run()
    made.network.get_nodes, made.network.tamper = listed, lambda request, reply: reply
    made.given["callbacks"] = []
    assert_same(made.run(), fm.run(**given))


def test_a_superlink_that_forgets_the_run_while_replies_are_awaited(deployed, caplog):
    """The error is the SuperLink's, not the clients': no reply is refused, and the round is not lost."""
    made = deployed(arguments(selection=EVERYONE))
    network, forgotten = made.network, []
    calls = {name: getattr(network, name) for name in ("get_nodes", "push_messages", "pull_messages")}

    def failing(name: str) -> Callable[..., Any]:
        def attempt(*arguments: Any) -> Any:
            if forgotten:
                request = httpx.Request("POST", "https://superlink")
                raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(401, request=request))
            result = calls[name](*arguments)
            if name == "push_messages" and any(in_round(1)(message) for message in arguments[0]):
                forgotten.append(name)
            return result

        return attempt

    for name in calls:
        setattr(network, name, failing(name))
    with caplog.at_level(logging.WARNING, "fedmos"), pytest.raises(OutageError, match="does not know this run any"):
        made.run()
    assert "Refused" not in caplog.text
    assert [r.round for r in fm.Result.load(made.folder / "run").history] == [1]


def test_sigterm_ends_the_wait_for_clients_that_do_not_reply(deployed, clock, monkeypatch):
    """They are connected, and are asked again after minutes; the process ends within seconds."""
    made, asked, stopped = deployed(arguments(system=fm.System(deadline=2.0, quorum=1.0)), poll=1.0), set(), []

    def answer(node: Any, message: Message) -> Message | None:
        if message.metadata.message_type == wire.TRAIN:
            asked.add(message.metadata.message_id)
            return None
        return type(node).answer(node, message)

    def sleep(seconds: float) -> None:
        if len(asked) == 3 * 6 and not stopped:  # before the cohort is asked for the seventh time, after 64 s
            stopped.append(clock.now)
            signal.raise_signal(signal.SIGTERM)
        clock.sleep(seconds)

    for node in made.network.nodes.values():
        node.answer = lambda message, node=node: answer(node, message)
    monkeypatch.setattr(outages, "sleep", sleep)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with pytest.raises(StopRequested):
            made.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert clock.now - stopped[0] < 5


def test_a_run_that_trains_nothing_does_not_finish(deployed):
    """Every reply is refused: nothing to wait for, but no finished run either, also when it is started again."""
    made = deployed(arguments(selection=EVERYONE, rounds=3))
    made.network.tamper = lambda request, reply: (
        Message(Error(2, "no"), reply_to=request) if request.metadata.message_type == wire.TRAIN else reply
    )
    for _ in range(2):
        with pytest.raises(RuntimeError, match="each of its 3 rounds was abandoned, so the model is not trained"):
            made.run()


def test_waiting_for_the_sizes_of_clients_with_own_data(deployed, clock, tmp_path):
    """The server does not know the number of samples of a client that was never connected."""
    from fedmos.flower import Deploy, client_app
    from fedmos.flower.deployment import Deployment
    from fedmos.flower.server import serve
    from helpers.flower_network import Network
    from helpers.flower_runs import federation

    data, names = federation(3), ["a", "b", "c"]
    config = {k: v for k, v in arguments(rounds=2, selection=EVERYONE).items() if k != "data"}
    config["deploy"] = Deploy(clients=names, wait=1.0, rejoin=0.2, poll=0.001)
    network = Network(
        lambda: client_app(config, data=lambda name: data.stored(names.index(name))), tmp_path / "state", names
    )
    network.nodes[102].online = False
    limited = Deployment.of(config | {"deploy": replace(config["deploy"], outage_limit=60.0)})
    with pytest.raises(
        OutageError, match=r"Cannot go on with the start .*: c; connect them, or leave them out of \[deploy\] c"
    ):
        serve(network, limited, tmp_path / "run", data.test)
    listed, clock.now = network.get_nodes, 1000.0

    def get_nodes() -> Any:
        network.nodes[102].online = clock.now > 1000 + HOUR
        return listed()

    network.get_nodes = get_nodes
    result = serve(network, Deployment.of(config), tmp_path / "run", data.test)
    assert [r.cohort for r in result.history] == [[0, 1, 2]] * 2
    assert not any(r.late for r in result.history)
    assert len(result.history[0].cohort) == 3 < CLIENTS


def assert_same_model(result: fm.Result, expected: fm.Result) -> None:
    assert torch.equal(result.params, expected.params)
    assert [r.cohort for r in result.history] == [r.cohort for r in expected.history]
    assert not any(r.abandoned or r.late for r in result.history)
