"""Damaged, missing, late and foreign replies of clients."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message

from fedmos.flower import wire
from helpers.flower_runs import BAD, CLIENTS, EVERYONE, ROUNDS, SELECTORS, arguments, assert_same, federation


@dataclass(frozen=True, kw_only=True)
class Poisoned(fm.FedAvg):
    """The client with importance `who` sends NaN: in a simulation, it is dropped."""

    who: float

    def finish(self, y, s, c, grad):
        return {"delta": torch.where(c.p == self.who, torch.nan, y - c.x)}, {}


@cache
def expected_without_bad(rounds: int = ROUNDS) -> fm.Result:
    data = federation()
    poisoned = Poisoned(lr=0.1, who=float(data.importance[BAD].to(torch.float32)))
    return fm.run(**arguments(algorithm=poisoned, selection=EVERYONE, on_bad_update="drop", rounds=rounds))


def with_array(reply: Message, array: Array) -> Message:
    reply.content["vectors"] = ArrayRecord({"delta": array})
    return reply


def with_numbers(reply: Message, value: float) -> Message:
    a = np.full(D, value, dtype="<f4")
    return with_array(reply, Array(dtype="float32", shape=(D,), stype="fedmos.raw", data=a.tobytes()))


def with_header(reply: Message, **changes: Any) -> Message:
    reply.content["fedmos"] = ConfigRecord(dict(reply.content["fedmos"]) | changes)
    return reply


def npy(header: str) -> bytes:
    """The bytes of a NumPy file with that header and no data."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def without(reply: Message, key: str) -> Message:
    del reply.content[key]
    return reply


D = 5 * 8 + 8 + 8 * 3 + 3

TAMPERED = {
    "NaN": (lambda reply: with_numbers(reply, np.nan), "'delta' is not finite"),
    "infinity": (lambda reply: with_numbers(reply, np.inf), "'delta' is not finite"),
    "too large": (lambda reply: with_numbers(reply, 1e4), "over the bound"),
    "wrong shape": (
        lambda reply: with_array(reply, Array("float32", (D, 1), "fedmos.raw", b"\0" * 4 * D)),
        "must be of shape",
    ),
    "wrong dtype": (
        lambda reply: with_array(reply, Array("float64", (D,), "fedmos.raw", b"\0" * 8 * D)),
        "must be of dtype float32",
    ),
    "too few bytes": (
        lambda reply: with_array(reply, Array("float32", (D,), "fedmos.raw", b"\0" * 4)),
        "must have 300 bytes",
    ),
    "missing field": (lambda reply: without(reply, "vectors"), "its vectors are none"),
    "missing header": (lambda reply: without(reply, "fedmos"), "it has no header"),
    "another field": (
        lambda reply: (reply.content["vectors"].update(more=Array("float32", (0,), "fedmos.raw", b"")), reply)[1],
        "its vectors are delta, more",
    ),
    "another record": (
        lambda reply: (reply.content.update(more=ConfigRecord({"a": 1})), reply)[1],
        "records of unknown names",
    ),
    "object array": (
        lambda reply: with_array(
            reply,
            Array("object", (D,), "numpy.ndarray", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n")),
        ),
        "must be serialised as fedmos.raw",
    ),
    "huge header": (
        lambda reply: with_array(
            reply, Array("float32", (10**15,), "fedmos.raw", npy("{'shape': (1000000000000000,)}" + " " * 60000))
        ),
        "must be of shape",
    ),
    "wrong run": (lambda reply: with_header(reply, run="0" * 32), "its 'run' is"),
    "wrong round": (lambda reply: with_header(reply, round=77), "its 'round' is 77"),
    "another client": (lambda reply: with_header(reply, client=0), "its 'client' is 0"),
    "no samples": (lambda reply: with_header(reply, samples=-3), "has -3 samples now instead of 9"),
    "many samples": (lambda reply: with_header(reply, samples=10**12), "has 1000000000000 samples now"),
    "header of another type": (lambda reply: with_header(reply, round=1.5), "'round' in its header must be int"),
    "an app that fails": (
        lambda reply: Message(Error(2, "no memory"), reply_to=reply),
        "its app failed (Flower's code 2)",
    ),
    "to another request": (
        lambda reply: (reply.metadata.__dict__.update(_reply_to_message_id="x"), reply)[1],
        "it names another request as the one that it replies to",
    ),
    "no message": (lambda reply: ValueError("Unexpected set of children"), "cannot be decoded"),
}


@pytest.mark.parametrize("fault", TAMPERED)
def test_a_reply_that_cannot_be_used(deployed, caplog, fault):
    """It is refused and logged with node and reason; the others' replies count as if it had been dropped."""
    change, reason = TAMPERED[fault]
    made = deployed(arguments(selection=EVERYONE, rounds=2), norm_bound=1000.0)

    def tamper(request: Message, reply: Message) -> Any:
        if request.metadata.dst_node_id != 100 + BAD or request.metadata.message_type != wire.TRAIN:
            return reply
        changed = change(reply)
        if isinstance(changed, Message) and changed.has_error():
            return Message(changed.error, reply_to=request)
        return changed

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert torch.equal(result.params, expected_without_bad(2).params)
    refused = [line for line in caplog.messages if line.startswith("Refused the reply of client '1' (node 101)")]
    assert len(refused) == 2
    assert all(reason in line for line in refused)


def test_last_rounds_reply_again(deployed, caplog):
    """From its second round on, a client repeats what it first sent."""
    made, first = deployed(arguments(selection=EVERYONE)), []

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id != 100 + BAD or request.metadata.message_type != wire.TRAIN:
            return reply
        first.append(reply.content)
        return Message(first[0], reply_to=request)

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert not any(record.abandoned for record in result.history)
    said = [line for line in caplog.messages if "Refused" in line]
    assert [f"its 'round' is 0 instead of {t}" in line for t, line in enumerate(said, 1)] == [True] * (ROUNDS - 1)


def test_a_reply_from_another_node(deployed, caplog):
    made = deployed(arguments(selection=EVERYONE), quarantine="off")

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id == 100 + BAD and request.metadata.message_type == wire.TRAIN:
            reply.metadata.__dict__["_src_node_id"] = 100
        return reply

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert torch.equal(result.params, expected_without_bad().params)
    assert sum("it comes from node 100" in line for line in caplog.messages) == ROUNDS


def test_messages_that_the_superlink_does_not_take_are_sent_again(deployed):
    """Flower returns no ids of messages that are too large together."""
    given = arguments()
    made, refused = deployed(given), []
    push = made.network.push_messages

    def pushed(messages: list[Message]) -> list[str]:
        if messages[0].metadata.message_type == wire.TRAIN and len(refused) < 2:
            refused.append(len(messages))
            return []
        return push(messages)

    made.network.push_messages = pushed
    assert_same(made.run(), fm.run(**given))
    assert refused == [3, 3]


def test_a_client_that_never_answers(deployed):
    """It is left out after the deadline, and said to be late; its replies of earlier rounds are never looked at."""
    given = arguments(selection=EVERYONE, system=fm.System(deadline=0.2), rounds=2)
    made = deployed(given)
    made.network.tamper = lambda request, reply: (
        None if request.metadata.dst_node_id == 101 and request.metadata.message_type == wire.TRAIN else reply
    )
    result = made.run()
    assert [record.late for record in result.history] == [[BAD], [BAD]]
    assert torch.equal(result.params, expected_without_bad(2).params)


@pytest.mark.parametrize("selector", ["pow-d", "CACS"])
def test_a_client_that_does_not_answer_the_selector(deployed, selector):
    """It is as if it were not available, and the round goes on with others."""
    given = arguments(selection=SELECTORS[selector], system=fm.System(deadline=0.2), rounds=4)
    made = deployed(given)
    made.network.tamper = lambda request, reply: (
        None
        if request.metadata.dst_node_id == 101 and request.metadata.message_type in (wire.LOSSES, wire.GRADIENTS)
        else reply
    )
    result = made.run()
    away = [record for record in result.history if record.available == CLIENTS - 1]
    assert away
    assert not any(BAD in record.cohort for record in away)
    assert not any(record.abandoned for record in result.history)


@pytest.mark.parametrize("algorithm", [fm.FedAvgM(lr=0.1), fm.Mime(lr=0.1, beta=0.6)], ids=lambda a: type(a).__name__)
def test_below_the_quorum_the_model_stays(deployed, caplog, algorithm):
    """Whether it is the extra phase that too few answer, or the training."""
    given = arguments(algorithm=algorithm, selection=EVERYONE, system=fm.System(quorum=1.0), rounds=3)
    made = deployed(given)
    seen = []

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type.startswith("train") and request.metadata.dst_node_id == 101:
            seen.append(wire.round_of(request.content))
            if seen[-1] == 1:
                return Message(Error(2, "no"), reply_to=request)
        return reply

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert [record.abandoned for record in result.history] == [False, True, False]
    assert result.history[1].test_loss == result.history[0].test_loss
    assert "Round 2 is abandoned because too few of its 6 clients" in caplog.text


def test_overflow_in_the_servers_step_does_not_end_the_run(deployed):
    """Numbers that are finite by themselves, and not in the sum."""
    made = deployed(arguments(selection=EVERYONE, rounds=3))

    def tamper(request: Message, reply: Message) -> Message:
        bad = request.metadata.message_type == wire.TRAIN and wire.round_of(request.content) < 2
        return with_numbers(reply, 3e38) if bad else reply

    made.network.tamper = tamper
    given = arguments(selection=EVERYONE, rounds=3, algorithm=fm.FedAvg(lr=0.1, server_lr=100.0))
    made.given |= {"algorithm": given["algorithm"]}
    result = made.run()
    assert [record.abandoned for record in result.history] == [True, True, False]
    assert result.history[1].test_loss == result.history[0].test_loss
