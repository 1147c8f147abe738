"""SIGTERM at a server app: the run stops between requests, its folder is closed, and it continues to the same bits."""

from __future__ import annotations

import logging
import signal

import pytest

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from fedmos.flower import wire
from fedmos.flower.graceful_stop import GracefulStop, StopRequested
from fedmos.flower.monitoring.status import DeploymentStatus
from fedmos.storage.lock import is_held
from helpers.flower_runs import EVERYONE, arguments, assert_same


@pytest.fixture
def received():
    """The signals that reach the handler that was there before: Flower's, which reports the end and exits."""
    found = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("moment", ["request", "commit"])
def test_a_run_that_is_stopped_continues_to_the_same_bits(deployed, received, caplog, moment):
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE)
    made, sent = deployed(given), []

    def tamper(request, reply):
        trains = request.metadata.message_type == wire.TRAIN and wire.round_of(request.content) == 1
        if moment == "request" and trains and not sent:
            sent.append(signal.raise_signal(signal.SIGTERM))
            return None
        return reply

    def commit(record):
        if moment == "commit" and record.round == 2 and not sent:
            sent.append(signal.raise_signal(signal.SIGTERM))

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"), pytest.raises(StopRequested):
        made.run(callbacks=[commit])
    assert received == [signal.SIGTERM]  # afterwards, not in the middle
    assert any(line.startswith("SIGTERM: the run stops before its next request") for line in caplog.messages)
    assert not is_held(made.folder / "run" / "lock")
    status = DeploymentStatus.read(made.folder / "run")
    assert (status.state, status.completed) == ("stopped", 1 if moment == "request" else 2)
    made.network._open.clear()
    assert_same(made.run(), fm.run(**given))


def test_a_second_signal_acts_at_once(received):
    stop = GracefulStop()
    with stop.deferred():
        signal.raise_signal(signal.SIGTERM)
        assert received == []
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]


def test_a_run_that_ends_before_its_next_request_has_finished(deployed, received):
    made = deployed()
    rounds = made.given["rounds"]
    result = made.run(callbacks=[lambda r: signal.raise_signal(signal.SIGTERM) if r.round == rounds else None])
    assert len(result.history) == rounds
    assert received == []
    assert DeploymentStatus.read(made.folder / "run").state == "finished"
