"""Refused clients are in the record, repeated refusals lead to quarantine, and the run can go back."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Error, Message

from fedmos.core.history import Record
from fedmos.flower import wire
from fedmos.flower.members.changes import Change, write_order
from fedmos.flower.members.quarantine import Quarantine
from fedmos.storage.checkpoint import Checkpoints
from helpers.flower_runs import EVERYONE, arguments, assert_same, federation

SCAFFOLD = {"algorithm": fm.Scaffold(lr=0.1), "selection": EVERYONE, "data": federation(3)}


def record(
    t: int, refused: tuple[int, ...] = (), late: tuple[int, ...] = (), cohort: tuple[int, ...] = (0, 1)
) -> Record:
    facts: dict[str, Any] = {"weights": [], "bytes_down": 0, "bytes_up": 0, "seconds": 0.0}
    return Record(round=t, cohort=list(cohort), late=list(late), refused=dict.fromkeys(map(str, refused), "x"), **facts)


CASES = {
    "three in a row": ([record(t, (1,)) for t in (1, 2, 3)], {}, {1}),
    "two": ([record(t, (1,)) for t in (1, 2)], {}, set()),
    "an accepted reply in between": ([record(1, (1,)), record(2, (1,)), record(3), record(4, (1,))], {}, set()),
    "rounds without it in between": (
        [record(1, (1,)), record(2, cohort=(0,)), record(3, (1,)), record(4, cohort=(0,)), record(5, (1,))],
        {},
        {1},
    ),
    "late does not count": ([record(1, (1,)), record(2, (1,), late=(1,)), record(3, (1,))], {}, set()),
    "at its end": ([*(record(t, (1,)) for t in (1, 2, 3)), *(record(t, cohort=(0,)) for t in (4, 5, 6))], {}, {1}),
    "after its end": (
        [*(record(t, (1,)) for t in (1, 2, 3)), *(record(t, cohort=(0,)) for t in range(4, 8))],
        {},
        set(),
    ),
    "released": ([*(record(t, (1,)) for t in (1, 2, 3)), record(4, cohort=(0,))], {1: 4}, set()),
    "released and refused again": ([record(t, (1,)) for t in range(1, 8)], {1: 4}, {1}),
    "all": ([record(t, (0, 1)) for t in (1, 2, 3)], {}, {0, 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_who_is_in_quarantine(name):
    history, cleared, expected = CASES[name]
    assert Quarantine(3, 4).clients(history, cleared) == expected
    assert Quarantine("off", 4).clients(history, cleared) == set()
    assert Quarantine(3, "off").clients(history, cleared) >= expected


def failing(made: Any, node: int, rounds: range) -> None:
    """Let the client of a node fail in some rounds."""

    def tamper(request: Message, reply: Message) -> Message:
        hit = request.metadata.dst_node_id == node and request.metadata.message_type == wire.TRAIN
        return Message(Error(2, "no"), reply_to=request) if hit and wire.round_of(request.content) in rounds else reply

    made.network.tamper = tamper


def test_a_client_that_fails_repeatedly_is_left_out_for_a_while(deployed, caplog):
    made = deployed(arguments(**SCAFFOLD, rounds=9), quarantine=2, quarantine_rounds=3)
    failing(made, 101, range(1, 3))
    with caplog.at_level(logging.INFO, "fedmos"):
        result = made.run()
    assert [list(r.refused) for r in result.history] == [[], ["1"], ["1"], [], [], [], [], [], []]
    assert "its app failed" in result.history[1].refused["1"]
    assert [r.quarantined for r in result.history] == [[], [], [], [1], [1], [1], [], [], []]
    assert [1 in r.cohort for r in result.history] == [True, True, True, False, False, False, True, True, True]
    assert [r.available for r in result.history] == [3, 3, 3, 2, 2, 2, 3, 3, 3]
    assert "Client '1' is in quarantine after repeated refusals, from round 4 on" in caplog.text
    assert "The quarantine of client '1' ends before round 7" in caplog.text
    assert made.run().history.to_dict() == result.history.to_dict()


def test_a_release_ends_the_quarantine(deployed):
    made = deployed(arguments(**SCAFFOLD, rounds=7), quarantine=2, quarantine_rounds="off")
    failing(made, 101, range(2))

    def on_round(record: Any) -> None:
        if record.round == 4:
            write_order(made.folder / "run", Change(kind="release", client="1"))

    made.given["callbacks"] = [on_round]
    result = made.run()
    assert [r.quarantined for r in result.history] == [[], [], [1], [1], [], [], []]
    assert result.history[4].changes == ["1: released from quarantine"]


def test_without_quarantine_a_client_is_asked_again(deployed):
    made = deployed(arguments(**SCAFFOLD, rounds=6), quarantine="off")
    failing(made, 101, range(5))
    assert [list(r.refused) for r in made.run().history] == [["1"]] * 5 + [[]]


def test_nobody_left_stops_the_run(deployed):
    """In place of rounds without clients, which would end in a finished run."""
    made = deployed(arguments(**SCAFFOLD, rounds=6), quarantine=2)
    made.network.tamper = lambda request, reply: (
        reply if request.metadata.message_type == wire.HELLO else Message(Error(2, "no"), reply_to=request)
    )
    with pytest.raises(RuntimeError, match=r"Cannot go on with round 3 because all clients are in quarantine .*: 0, 1"):
        made.run()


def test_norms_and_dropped_updates_are_recorded(deployed):
    made = deployed(arguments(**SCAFFOLD))

    def tamper(request: Message, reply: Message) -> Message:
        trained = request.metadata.dst_node_id == 102 and request.metadata.message_type == wire.TRAIN
        if trained and wire.round_of(request.content) == 2:
            array = reply.content["vectors"]["delta"]
            array.data = (1e6 * torch.frombuffer(bytearray(array.data), dtype=torch.float32)).numpy().tobytes()
        return reply

    made.network.tamper = tamper
    result = made.run()
    assert all(norm > 0 for r in result.history for norm in r.update_norms if norm is not None)
    assert [[i for i, norm in zip(r.cohort, r.update_norms, strict=True) if norm is None] for r in result.history] == [
        [],
        [],
        [2],
        [],
    ]
    assert [list(r.refused) for r in result.history] == [[], [], ["2"], []]
    assert "'delta' has a norm of" in result.history[2].refused["2"]


def test_nodes_that_are_refused_are_recorded(deployed):
    """Their clients are late, and do not count for the quarantine: anyone can claim a name."""
    made = deployed(arguments(**SCAFFOLD), quarantine=1)
    other = {**made.given, "local_steps": 5}
    from fedmos.flower import client_app

    made.network.nodes[102]._app = lambda: client_app(other)
    result = made.run()
    assert [r.late for r in result.history] == [[2]] * 4
    assert all("its configuration, model or fedmos version differs" in r.refused["2"] for r in result.history)
    assert not any(r.quarantined for r in result.history)


@pytest.mark.parametrize("back", [2, 5])
def test_going_back_gives_the_same_bits(deployed, back):
    """While the run goes on; the clients start from the state of that round, and answer rounds that they have done."""
    given = arguments(**SCAFFOLD, rounds=8, downlink=fm.codecs.Quantize(bits=8))
    made, ordered = deployed(given, keep_checkpoints=5), []

    def on_round(record: Any) -> None:
        if record.round == 6 and not ordered:
            ordered.append(write_order(made.folder / "run", Change(kind="rollback", round=back)))

    made.given["callbacks"] = [on_round]
    result = made.run()
    assert ordered
    assert_same(result, fm.run(**given))
    assert [r.changes for r in result.history if r.changes] == [[f"rolled back to round {back}"]]
    assert result.history[back].changes


def test_going_back_without_the_client_that_did_harm(deployed):
    """A stopped or finished run goes back as well; what follows is the run without the client since then."""
    given = arguments(**SCAFFOLD, rounds=6)
    made = deployed(given, keep_checkpoints=4)
    made.run()
    write_order(made.folder / "run", Change(kind="rollback", round=3))
    write_order(made.folder / "run", Change(kind="retire", client="2"))
    result = made.run()
    assert [r.cohort for r in result.history] == [[0, 1, 2]] * 3 + [[0, 1]] * 3
    assert result.history[3].changes == ["rolled back to round 3", "2: retired"]
    assert not any(r.refused or r.late or r.abandoned for r in result.history)
    assert_same_head(result, fm.run(**given), 3)


def test_going_back_to_a_round_that_is_not_kept(deployed, caplog):
    made = deployed(arguments(**SCAFFOLD), keep_checkpoints=2)
    expected = made.run()
    write_order(made.folder / "run", Change(kind="rollback", round=1))
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert torch.equal(result.params, expected.params)
    assert "Cannot go back to round 1 because no checkpoint of it is kept; there are: 3, 4" in caplog.text


def test_checkpoints_are_kept_across_starts(deployed):
    made = deployed(arguments(**SCAFFOLD), keep_checkpoints=3)
    for rounds in (2, 3, 5):
        made.run(rounds=rounds)
    kept = Checkpoints(made.folder / "run" / "checkpoints", 3)
    for t in (3, 4, 5):
        assert len(kept.load_round(t).history) == t
    with pytest.raises(ValueError, match="there are: 3, 4, 5"):
        kept.load_round(2)


def assert_same_head(result: fm.Result, expected: fm.Result, rounds: int) -> None:
    for mine, theirs in zip(list(result.history)[:rounds], expected.history, strict=False):
        assert (mine.cohort, mine.accuracy) == (theirs.cohort, theirs.accuracy)
