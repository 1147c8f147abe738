"""The adaptive bound on norms: honest runs keep their bits, and an update out of proportion is dropped and logged."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Array, ArrayRecord, Error, Message

from fedmos.flower import Deploy, wire
from helpers.conformance import EACH
from helpers.flower_runs import BAD, CLIENTS, EVERYONE, SELECTORS, Deployed, arguments, assert_same


def scaled(factors: dict[tuple[int, int], float], names: tuple[str, ...] = ("delta",)):
    """Scale uploads by round and client."""

    def tamper(request: Message, reply: Message) -> Message:
        client, t = request.metadata.dst_node_id - 100, wire.round_of(request.content)
        if request.metadata.message_type in (wire.TRAIN, wire.UPLOAD) and (t, client) in factors:
            arrays = dict(reply.content["vectors"].items())
            for name in names:
                v = np.frombuffer(arrays[name].data, np.float32) * np.float32(factors[t, client])
                arrays[name] = Array("float32", tuple(arrays[name].shape), "fedmos.raw", v.tobytes())
            reply.content["vectors"] = ArrayRecord(arrays)
        return reply

    return tamper


def anomalies(caplog) -> list[str]:
    return [line for line in caplog.messages if line.startswith("Anomaly")]


def play(made, caplog, factors=None, names=("delta",)) -> fm.Result:
    made.network.tamper = scaled(factors or {}, names)
    with caplog.at_level(logging.WARNING, "fedmos"):
        return made.run()


@pytest.mark.parametrize(
    "changes",
    [pytest.param({"selection": fm.Uniform(m=2)}, marks=pytest.mark.extended), {"selection": SELECTORS["OCS"]}],
    ids=str,
)
def test_an_honest_run_keeps_its_bits(deployed, caplog, changes):
    given = arguments(algorithm=fm.Scaffold(lr=0.1)) | changes
    assert_same(play(deployed(given), caplog), fm.run(**given))
    assert not anomalies(caplog)


@pytest.mark.extended
@pytest.mark.parametrize("case", EACH, ids=str)
def test_honest_runs_of_every_algorithm(deployed, caplog, case):
    given = arguments(algorithm=case.make(lr=0.1), selection=fm.Uniform(m=2), rounds=6)
    assert_same(play(deployed(given), caplog), fm.run(**given))
    assert not anomalies(caplog)


@pytest.mark.parametrize(("t", "name"), [(0, "change"), pytest.param(2, "delta", marks=pytest.mark.extended)])
def test_an_update_times_a_million_is_dropped(tmp_path, clock, caplog, t, name):
    """In the first round it is compared with its cohort. The run is that in which the client fails in this round."""
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE, rounds=3)
    result = play(Deployed(tmp_path / "one", given), caplog, {(t, BAD): 1e6}, (name,))
    (line,) = anomalies(caplog)
    place = f"client '{BAD}' (node {100 + BAD}) in round {t + 1}"
    assert line.startswith(f"Anomaly: dropped the update of {place}: '{name}' has a norm of ")
    assert "over the bound of" in line
    other = Deployed(tmp_path / "other", given)

    def fail(request: Message, reply: Message) -> Message:
        fails = request.metadata.dst_node_id == 100 + BAD and wire.round_of(request.content) == t
        return Message(Error(code=2, reason="none"), reply_to=request) if fails else reply

    other.network.tamper = fail
    assert torch.equal(result.params, other.run().params)


def test_one_client_a_round_is_compared_with_earlier_ones(deployed, caplog):
    """Also by a server that was restarted in between: the norms are in its checkpoint."""
    given = arguments(selection=fm.FixedCohorts([[0], [2], [3], [BAD], [4]]), rounds=3)
    made = deployed(given)
    made.run()
    made.given |= {"rounds": 5}
    before = made.run(rounds=3).params
    result = play(made, caplog, {(3, BAD): 1e6, (4, 4): 20.0})
    (line,) = anomalies(caplog)
    assert f"client '{BAD}' (node {100 + BAD}) in round 4: 'delta' has a norm of" in line
    assert "100 times the median of 4 norms" in line
    assert result.history[3].abandoned
    assert not result.history[4].abandoned
    assert float((result.params - before).norm()) < 50


def test_two_norms_do_not_tell_which_is_wrong(deployed, caplog):
    play(deployed(arguments(selection=fm.FixedCohorts([[0, BAD]]), rounds=1)), caplog, {(0, BAD): 1e6})
    (line,) = anomalies(caplog)
    assert line.startswith("Anomaly: kept the update")
    assert line.endswith("which are too few to tell which of them is wrong")


@pytest.mark.parametrize(
    ("deploy", "dropped"),
    [({"norm_factor": 3.0}, True), ({}, False), ({"norm_bound": "off"}, False)],
    ids=str,
)
def test_settings(deployed, caplog, deploy, dropped):
    made = deployed(arguments(selection=EVERYONE, rounds=1), **deploy)
    play(made, caplog, {(0, BAD): 30.0 if deploy.get("norm_bound", 0) == 0 else 1e6})
    assert bool(anomalies(caplog)) == dropped


def test_a_client_that_joins_a_converged_federation_is_accepted(deployed, caplog):
    """The others' norms have become small since; their first ones count."""
    factors = {(t, i): 1e-5 for t in (1, 2, 3) for i in range(CLIENTS)} | {(3, BAD): 1.0}
    play(deployed(arguments(selection=EVERYONE, rounds=4)), caplog, factors)
    assert not anomalies(caplog)


@pytest.mark.parametrize("value", ["none", 0.0, True], ids=str)
def test_values_that_are_refused(value):
    with pytest.raises(ValueError, match="Deploy: 'norm_bound' must be > 0 or one of 'adaptive', 'off'"):
        Deploy(norm_bound=value)
    with pytest.raises(ValueError, match="Deploy: 'norm_factor' must be ≥ 1"):
        Deploy(norm_factor=0.5)
