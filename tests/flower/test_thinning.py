"""Deployed clients that report first, and upload if asked."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from flwr.app import Message, RecordDict

import fedmos as fm
from fedmos.flower import wire
from fedmos.flower.client_errors import ClientErrorCode
from helpers.flower_runs import Deployed, arguments, assert_same

ALGORITHMS = {"FedAvg": fm.FedAvg(lr=0.1), "Scaffold": fm.Scaffold(lr=0.1), "Mime": fm.Mime(lr=0.1, beta=0.5)}


@dataclass(frozen=True)
class Best(fm.Selector):
    """Four clients in turn; the two with the largest report upload."""

    asked: tuple[str, ...] = ("update_norm", "start_loss")

    @property
    def reports(self):
        return self.asked

    def select(self, view):
        return (view.round + torch.tensor([0, 1, 3, 4])) % 6, torch.full((4,), 0.25, dtype=torch.float64)

    def thin(self, view, reports):
        chosen = reports[self.asked[0]].topk(2).indices
        return view.cohort[chosen], torch.tensor([0.75, 0.25])


@dataclass(frozen=True, kw_only=True)
class Telling(fm.Algorithm):
    """FedAvg that uploads two numbers besides."""

    lr: float
    up = ("delta", ("size", ()), ("steps", ()))
    reduce = {"A": ("delta", "w"), "size": ("size", "avg")}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "size": (y - c.x).norm(dim=-1, keepdim=True), "steps": c.K}, {}


@pytest.mark.parametrize("engine", ["loop", pytest.param("batched", marks=pytest.mark.extended)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_run_as_simulated(tmp_path, name, engine):
    """Model, state, records and bytes; clients that are not asked start again from the state before."""
    given = arguments(algorithm=ALGORITHMS[name], selection=Best(), engine=engine, rounds=5)
    assert_same(Deployed(tmp_path, given).run(), fm.run(**given), exact=engine == "loop")


def test_two_messages(tmp_path):
    """All of the cohort train and report; those asked get a message without payload, and send their upload."""
    deployed = Deployed(tmp_path, arguments(selection=Best(), rounds=2))
    result = deployed.run()
    sent = [m for m in deployed.network.sent if m.metadata.message_type in (wire.TRAIN, wire.REPORT, wire.UPLOAD)]
    assert [m.metadata.message_type for m in sent] == 2 * (4 * [wire.REPORT] + 2 * [wire.UPLOAD])
    assert {wire.payload(m.content) for m in sent if m.metadata.message_type == wire.UPLOAD} == {0}
    D = len(result.params)
    assert {r.bytes_up for r in result.history} == {(4 * 2 + 2 * D) * 4}
    assert {r.bytes_down for r in result.history} == {4 * D * 4}


def test_a_number_is_sent_once(tmp_path):
    """An uploaded number that is a report is not sent again with the upload."""
    given = arguments(algorithm=Telling(lr=0.1), selection=Best(("size",)), rounds=3)
    deployed, simulated = Deployed(tmp_path, given).run(), fm.run(**given)
    assert_same(deployed, simulated)
    D = len(simulated.params)
    assert {r.bytes_up for r in deployed.history} == {(4 * 1 + 2 * (D + 1)) * 4}


def test_uploads_that_are_not_asked_for_are_dropped(tmp_path, caplog):
    """A client keeps one upload at most, until the next time that it trains."""
    deployed = Deployed(tmp_path, arguments(selection=Best(), rounds=4))
    deployed.run()
    kept = sorted((tmp_path / "state").rglob("upload.safetensors"))
    assert len(kept) == 6
    assert ask_for_upload(deployed, round_=0) == ClientErrorCode.STATE
    assert "belongs to another run, client or round" in caplog.text


def ask_for_upload(deployed: Deployed, round_: int) -> int:
    """Ask a client for the upload of an earlier round; returns the code of its error."""
    last = next(m for m in reversed(deployed.network.sent) if m.metadata.message_type == wire.UPLOAD)
    header = dict(last.content["fedmos"]) | {"round": round_}
    content = RecordDict(last.content)
    content["fedmos"] = type(last.content["fedmos"])(header)
    message = Message(content, last.metadata.dst_node_id, wire.UPLOAD)
    message.metadata.__dict__["_message_id"] = "late"
    return deployed.network.nodes[last.metadata.dst_node_id].answer(message).error.code


def test_an_upload_that_fails_is_left_out(tmp_path):
    """The other's weight is scaled up to the sum of both."""
    given = arguments(selection=Best(), rounds=1)
    simulated = fm.run(**given)
    lost = simulated.history[0].uploaded[0]
    deployed = Deployed(tmp_path, given)

    def tamper(request, reply):
        asked = request.metadata.message_type == wire.UPLOAD and request.metadata.dst_node_id == 100 + lost
        return Message(RecordDict(), reply_to=request) if asked else reply

    deployed.network.tamper = tamper
    result = deployed.run()
    assert result.history[0].uploaded == simulated.history[0].uploaded[1:]
    assert not result.history[0].abandoned
    alone = fm.run(**given | {"selection": fm.FixedCohorts([result.history[0].uploaded], [[1.0]])})
    torch.testing.assert_close(result.params, alone.params)


def test_a_report_that_fails_is_left_out(tmp_path):
    """The selector does not see it, and its weight goes to the others."""
    seen = []

    @dataclass(frozen=True)
    class Noting(Best):
        def thin(self, view, reports):
            seen.append((view.cohort.tolist(), view.weights.tolist()))
            return super().thin(view, reports)

    deployed = Deployed(tmp_path, arguments(selection=Noting(), rounds=1))

    def tamper(request, reply):
        first = request.metadata.message_type == wire.REPORT and request.metadata.dst_node_id == 100
        return Message(RecordDict(), reply_to=request) if first else reply

    deployed.network.tamper = tamper
    result = deployed.run()
    assert seen == [([1, 3, 4], pytest.approx([1 / 3] * 3))]
    assert len(result.history[0].uploaded) == 2


def test_a_restarted_server_goes_on(tmp_path):
    """Killed between two rounds; nothing of the two messages is in the server's memory."""
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=Best(), rounds=4)
    deployed = Deployed(tmp_path, given | {"checkpoint_every": 1})
    deployed.run(rounds=2)
    assert_same(deployed.run(), fm.run(**given))


@pytest.mark.parametrize("asked", [("update_norm",), ("start_loss",)], ids=["norms reported", "norms taken"])
def test_norms_of_updates_in_the_records(tmp_path, asked):
    """The server knows the norms of those who upload, and of all if the selector asks for them."""
    given = arguments(selection=Best(asked), rounds=3, update_norms=True)
    deployed, simulated = Deployed(tmp_path, given).run(), fm.run(**given)
    assert_same(deployed, simulated)
    for mine, theirs in zip(deployed.history, simulated.history, strict=True):
        known = [i for i, norm in zip(mine.cohort, mine.update_norms, strict=True) if norm is not None]
        assert known == (mine.cohort if asked == ("update_norm",) else mine.uploaded)
        assert [v or 0 for v in mine.update_norms] == pytest.approx([v or 0 for v in theirs.update_norms], rel=1e-6)
