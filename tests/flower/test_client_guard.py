"""What a client answers: its policy, one training per round, codes in place of texts, and the audit log."""

from __future__ import annotations

import json
import logging
import re
import stat
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Context, RecordDict

from fedmos.flower import ClientPolicy, client_app, server_app, wire
from fedmos.flower.client_errors import ClientErrorCode
from helpers.curious_server import ROWS, Asked, imprint, initial, reconstructed, vectors
from helpers.flower_network import Network
from helpers.flower_runs import EVERYONE, SELECTORS, arguments, assert_same

QUESTIONS = 4


def stolen(client: Asked) -> set[int]:
    """The rows that a curious server recovers by `query.gradients` at models of its choice."""
    g, found = torch.Generator().manual_seed(5), set()
    for t in range(QUESTIONS):
        reply = client.ask(wire.GRADIENTS, imprint(g), t, keep=False)
        if not reply.has_error():
            (gradient,) = vectors(reply, gradient=(len(initial()),)).values()
            found |= reconstructed(gradient)
    return found


def audit(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def test_a_curious_server_is_refused(tmp_path, caplog):
    """FedAvg needs no gradients at models of the server's choice; without the policy, they give rows away."""
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert stolen(Asked(tmp_path)) == set()
    line = "Refused 'query.gradients' (code 111): this client's policy does not allow 'query.gradients'"
    assert caplog.messages == [line] * QUESTIONS
    assert [(e["asked"], e["outcome"], e["code"]) for e in audit(tmp_path / "state" / "a")] == [
        ("query.gradients", "refused", 111)
    ] * QUESTIONS


def test_a_curious_server_is_answered_if_the_client_allows_it(tmp_path):
    """What the policy protects from: the attack of the test above recovers most rows."""
    assert len(stolen(Asked(tmp_path, ClientPolicy(gradients="always")))) > ROWS // 2


@pytest.mark.parametrize(
    ("kind", "header", "allows", "needs"),
    [
        (wire.GRADIENTS, {"keep": False}, {"gradients": "always"}, {"selection": fm.CACS(m=1, warmup=0)}),
        (wire.LOSSES, {"batch": False, "keep": False}, {"losses": "always"}, {"selection": fm.PowerOfChoice(m=1, d=2)}),
        (wire.EVALUATE, {}, {"metrics": "always"}, {}),
    ],
)
def test_questions_are_answered_if_the_policy_or_the_method_says_so(tmp_path, kind, header, allows, needs):
    def code(name: str, policy: ClientPolicy | None, **changes: Any) -> int:
        reply = Asked(tmp_path / name, policy, **changes).ask(kind, initial(), **header)
        return reply.error.code if reply.has_error() else 0

    (field,) = allows
    assert code("default", None) == ClientErrorCode.FORBIDDEN
    assert code("allowed", ClientPolicy(**allows)) == 0
    if needs:
        assert code("needed", None, **needs) == 0
        assert code("forbidden", ClientPolicy(**{field: "never"}), **needs) == ClientErrorCode.FORBIDDEN


def test_phases_and_reports_that_the_method_does_not_have(tmp_path):
    client = Asked(tmp_path)
    assert client.train(initial(), kind=wire.PREPARE).error.code == ClientErrorCode.FORBIDDEN
    assert client.train(initial(), kind=wire.REPORT).error.code == ClientErrorCode.FORBIDDEN
    assert client.train(initial(), reports="loss").error.code == ClientErrorCode.FORBIDDEN
    assert client.train(initial(), width=2**40).error.code == ClientErrorCode.INVALID_REQUEST
    assert not client.train(initial()).has_error()
    reporting = Asked(tmp_path / "reporting", selection=fm.PowerOfChoice(m=1, d=2, loss="reported"))
    assert not reporting.train(initial(), reports="loss").has_error()


def test_one_training_per_round(tmp_path, caplog):
    """The same request gets the same bits, also with another cohort; a different model is refused."""
    client, x = Asked(tmp_path), initial()
    first = vectors(client.train(x), delta=x.shape)
    again = vectors(client.train(x, S=1, W=0.5, width=ROWS + 7), delta=x.shape)
    assert torch.equal(first["delta"], again["delta"])
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert client.train(x + 1).error.code == ClientErrorCode.DIFFERENT_REQUEST
    assert "Refused 'train.work' (code 112): the client has answered a different request for 'train'" in caplog.text
    assert client.train(x, lr=0.2).error.code == ClientErrorCode.DIFFERENT_REQUEST
    assert not client.train(x + 1, round=1).has_error()
    twice = Asked(tmp_path / "twice", ClientPolicy(trainings_per_round=2))
    codes = [reply.error.code if reply.has_error() else 0 for reply in (twice.train(x + i) for i in range(3))]
    assert codes == [0, 0, ClientErrorCode.DIFFERENT_REQUEST]


def test_a_request_of_a_past_round_is_refused_as_a_replay(tmp_path, caplog):
    client, x = Asked(tmp_path), initial()
    for t in range(3):
        assert not client.train(x + t, round=t).has_error()
    assert not client.train(x + 1, round=1).has_error()  # a server may have lost its last checkpoint
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert client.train(x, round=0).error.code == ClientErrorCode.REPLAYED
    line = "Refused 'train.work' (code 113): it belongs to round 1, and the client has answered round 3"
    assert line in caplog.messages
    patient = Asked(tmp_path / "patient", ClientPolicy(rounds_back=5))
    assert not any(patient.train(x + t, round=t).has_error() for t in (0, 1, 2, 3, 0))


@pytest.mark.parametrize(
    ("policy", "changes", "code"),
    [
        (ClientPolicy(min_samples=ROWS + 1), {}, ClientErrorCode.TOO_FEW_SAMPLES),
        (ClientPolicy(min_samples=ROWS), {}, 0),
        (ClientPolicy(min_batch=5), {}, ClientErrorCode.SMALL_BATCHES),
        (ClientPolicy(min_batch=4), {}, 0),
        (ClientPolicy(min_batch=4), {"local_steps": None, "local_epochs": 1, "batch_size": 19}, 115),  # 60 % 19 = 3
    ],
)
def test_questions_about_few_samples_are_refused(tmp_path, policy, changes, code):
    reply = Asked(tmp_path, policy, **changes).train(initial())
    assert (reply.error.code if reply.has_error() else 0) == code


def test_clipping_and_noise_at_the_client(tmp_path):
    """Uploads are clipped; the noise has its standard deviation, and is the same if the request is repeated."""
    x = initial()
    plain = vectors(Asked(tmp_path / "plain").train(x), delta=x.shape)["delta"]
    clipped = vectors(Asked(tmp_path / "clipped", ClientPolicy(clip_norm=0.01)).train(x), delta=x.shape)["delta"]
    assert plain.norm() > 0.01
    assert torch.allclose(clipped, plain * (0.01 / plain.norm()))
    client = Asked(tmp_path / "noisy", ClientPolicy(clip_norm=0.01, noise_multiplier=2.0))
    noisy = [vectors(client.train(x), delta=x.shape)["delta"] for _ in range(2)]
    assert torch.equal(*noisy)
    noise = noisy[0] - clipped
    assert abs(float(noise.std()) / 0.02 - 1) < 0.1
    assert abs(float(noise.mean())) < 0.002
    other = vectors(client.train(x, round=1), delta=x.shape)["delta"] - noisy[0]
    assert float(other.std()) > 0.02
    another = Asked(tmp_path / "another", ClientPolicy(clip_norm=0.01, noise_multiplier=2.0))
    assert not torch.equal(vectors(another.train(x), delta=x.shape)["delta"], noisy[0])
    assert stat.S_IMODE((client.folder / "noise.key").stat().st_mode) == 0o600


def test_the_same_noise_is_on_one_upload_only(tmp_path):
    """GHBM's upload depends on S / N: the difference of two uploads with the same noise would have none."""
    client = Asked(tmp_path, ClientPolicy(clip_norm=10.0, noise_multiplier=2.0), algorithm=fm.FedHBM(lr=0.1, beta=0.5))
    x = initial()
    assert not client.train(x).has_error()
    for changes in ({"S": 1}, {"N": 7}, {"W": 2.0}, {"p": 0.2}, {"width": ROWS + 1}):
        assert client.train(x, **changes).error.code == ClientErrorCode.DIFFERENT_REQUEST, changes


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_damaged_secret_is_refused(tmp_path, content):
    """As after a loss of power: noise of an empty secret could be computed by everyone."""
    client, x = Asked(tmp_path, ClientPolicy(clip_norm=0.01, noise_multiplier=2.0)), initial()
    assert not client.train(x).has_error()
    (client.folder / "noise.key").write_bytes(content)
    assert client.train(x).error.code == ClientErrorCode.STATE
    assert "noise.key is damaged" in audit(client.folder)[-1]["reason"]


def test_noise_goes_with_nothing_that_has_none(tmp_path, caplog):
    policy, x = ClientPolicy(clip_norm=1.0, noise_multiplier=1.0), initial()
    asking = Asked(tmp_path / "asking", policy, selection=fm.PowerOfChoice(m=1, d=2))
    assert asking.ask(wire.LOSSES, x, batch=False, keep=False).error.code == ClientErrorCode.FORBIDDEN
    coded = Asked(tmp_path / "coded", ClientPolicy(clip_norm=1.0), uplink=fm.codecs.TopK(0.1))
    assert coded.train(x).error.code == ClientErrorCode.CONFIGURATION
    assert "Cannot use [policy] clip_norm with 'uplink'" in caplog.text
    with pytest.raises(ValueError, match="'clip_norm' must be given with 'noise_multiplier'"):
        ClientPolicy(noise_multiplier=1.0)


@pytest.mark.parametrize("when", ["loading", "training"])
def test_texts_of_exceptions_stay_with_the_client(tmp_path, caplog, clock, monkeypatch, when):
    """An exception may quote a patient's record; the server learns a code."""
    secret = "could not convert string to float: 'Jane Doe 1961-02-03 HIV+'"

    def fails(*_: Any) -> Any:
        raise ValueError(secret)

    given = arguments(selection=EVERYONE, rounds=1)
    network = Network(lambda: client_app(given), tmp_path / "state", range(6))
    bad = Network(lambda: client_app(given, data=fails), tmp_path / "state", [2]).nodes[100]
    if when == "training":
        monkeypatch.setattr("fedmos.flower.client_runtime.initial_client_state", fails)
    replies = []

    def tamper(request: Any, reply: Any) -> Any:
        replies.append(reply)
        return reply

    network.tamper = tamper
    if when == "loading":
        bad.number = 102
        network.nodes[102] = bad
    untrained = pytest.raises(RuntimeError, match="each of its 1 rounds was abandoned")
    with caplog.at_level(logging.WARNING, "fedmos"), untrained if when == "training" else nullcontext():
        run_server(network, given, tmp_path / "run")
    errors = [reply.error for reply in replies if reply.has_error()]
    assert errors
    assert not any("Jane" in str(error.reason) for error in errors)
    by_server = [record.getMessage() for record in caplog.records if record.module != "client"]
    assert not any("Jane" in line for line in by_server)
    expected = {"loading": "its data cannot be loaded (code 121)", "training": "its app failed (code 140)"}[when]
    assert any(f"{expected}; the reason is in the client's own log" in line for line in by_server)
    assert secret in caplog.text  # in the client's own log


def run_server(network: Network, given: dict[str, Any], out: Path) -> None:
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"out": str(out)})
    server_app(given)(network, context)


def test_the_audit_log(tmp_path):
    client, x = Asked(tmp_path), initial()
    client.ask(wire.HELLO, round=-1)
    delta = vectors(client.train(x), delta=x.shape)["delta"]
    client.train(x + 1)
    hello, trained, refused = audit(client.folder)
    assert hello["asked"] == "query.hello"
    assert hello["outcome"] == "answered"
    assert trained | {"time": ""} == {
        "time": "",
        "client": "a",
        "asked": "train.work",
        "run": "a" * 32,
        "round": 0,
        "fields": {
            "lr": 0.1,
            "N": 2,
            "S": 2,
            "W": 1.0,
            "p": 0.5,
            "last": -1,
            "width": ROWS,
            "reports": "",
            "keep": False,
            "stored": "",
            "restart": "",
        },
        "received": {"vectors": {"x": {"dtype": "float32", "shape": [len(x)]}}, "bytes": 4 * len(x)},
        "outcome": "answered",
        "sent": {
            "vectors": {"delta": {"dtype": "float32", "shape": [len(x)], "norm": pytest.approx(float(delta.norm()))}},
            "numbers": {},
            "bytes": 4 * len(x),
        },
    }
    assert (refused["outcome"], refused["code"]) == ("refused", 112)
    assert "a different request for 'train' in round 1" in refused["reason"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", trained["time"])
    assert datetime.fromisoformat(hello["time"]) <= datetime.fromisoformat(refused["time"])


def test_without_an_audit_log_there_is_no_answer(tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedmos.storage.files._write_all", full)
    reply = Asked(tmp_path).train(initial())
    assert reply.error.code == ClientErrorCode.STORAGE


def test_files_are_readable_by_their_owner_only(tmp_path, clock):
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=SELECTORS["OCS"], rounds=2)
    network = Network(lambda: client_app(given), tmp_path / "state", range(6))
    (tmp_path / "run").mkdir(mode=0o755)
    run_server(network, given, tmp_path / "run")
    paths = [tmp_path / "run", *(tmp_path / "run").rglob("*"), tmp_path / "state", *(tmp_path / "state").rglob("*")]
    names = {path.name for path in paths}
    assert {"deployment.json", "audit.jsonl", "requests.sqlite", "checkpoints", "log.txt"} <= names
    loose = {str(path): oct(stat.S_IMODE(path.stat().st_mode)) for path in paths if path.stat().st_mode & 0o077}
    assert loose == {}


def test_a_policy_of_defaults_changes_no_bits(deployed):
    """The default policy answers what the method needs, with two phases of training and a selector that asks."""
    for algorithm, selection in ((fm.Mime(lr=0.1, beta=0.6), SELECTORS["pow-d"]), (fm.FedAvg(lr=0.1), EVERYONE)):
        given = arguments(algorithm=algorithm, selection=selection, rounds=2)
        made = deployed(given)
        made.folder = made.folder / type(algorithm).__name__
        assert_same(made.run(), fm.run(**given))
