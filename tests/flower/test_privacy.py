"""Private deployments: the sums of the simulation, noise that nobody can compute, restarts, and what is refused."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Array, ArrayRecord, Error, Message

from fedmos.flower import Deploy, client_app, manifest, server, wire
from fedmos.flower.client_runtime import ClientRuntime
from fedmos.flower.deployment import Deployment
from fedmos.flower.releases import Releases
from fedmos.flower.server import serve
from fedmos.privacy.noise import SeededNoise, SystemNoise, system_normal
from helpers.conformance import EACH
from helpers.flower_network import Network
from helpers.flower_runs import BAD, CLIENTS, EVERYONE, arguments, assert_same, federation
from helpers.private import gaussian

MORE = pytest.mark.extended
JOB = {
    "lr": 0.1,
    "N": 6,
    "S": 3,
    "W": 1.0,
    "p": 1 / 6,
    "last": -1,
    "width": 0,
    "keep": False,
    "stored": "",
    "restart": "",
}


@pytest.fixture
def seeded(monkeypatch):
    """Noise and cohorts from the run's seed, as in a simulation."""
    monkeypatch.setattr(server, "SystemNoise", SeededNoise)
    monkeypatch.setattr(manifest.DeploymentManifest, "cohort_seed", lambda self, t: 7)


def private(algorithm: fm.Algorithm | None = None, **changes) -> dict:
    given = {"algorithm": algorithm or fm.FedAvg(lr=0.1), "selection": fm.Bernoulli(rate=0.35)}
    return arguments(**given | {"privacy": gaussian(0.05, 1.0)} | changes)


def compare(deployed, given, exact: bool = True) -> fm.Result:
    result, expected = deployed(given).run(), fm.run(**given)
    assert_same(result, expected, exact)
    assert [r.epsilon for r in result.history] == [r.epsilon for r in expected.history]
    return result


@pytest.mark.parametrize("algorithm", [fm.Scaffold(lr=0.1), fm.Mime(lr=0.1, beta=0.6)], ids=str)
def test_the_bits_of_the_simulation_with_its_noise(deployed, seeded, algorithm):
    compare(deployed, private(algorithm))


@pytest.mark.extended
@pytest.mark.parametrize("selection", [fm.Bernoulli(rate=0.35), fm.Uniform(m=3), EVERYONE, fm.MD(m=3)], ids=str)
@pytest.mark.parametrize("case", [case for case in EACH if case.make(lr=0.1).up], ids=str)
def test_every_algorithm(deployed, seeded, case, selection):
    compare(deployed, private(case.make(lr=0.1), selection=selection))


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": gaussian(0.05, 1.0, adaptive=True)},
        {"privacy": gaussian(0.05, 1.0, accountant="pld")},
        {"privacy": gaussian({"delta": 0.05, "change": 0.5}), "downlink": fm.codecs.Quantize(4)},
        pytest.param({"engine": "batched", "batch_size": None, "local": fm.local.Adam(keep=True)}, marks=MORE),
    ],
    ids=["adaptive", "accountant", "bounds,downlink", "batched"],
)
def test_settings(deployed, seeded, changes):
    """Batched full gradients are padded to the largest client, whose size is not sent: equal up to rounding."""
    compare(deployed, private(fm.Scaffold(lr=0.1), **changes), exact=changes.get("engine") != "batched")


@pytest.mark.parametrize(
    ("algorithm", "privacy"),
    [
        (fm.FedHBM(lr=0.1, beta=0.6), gaussian(0.05, 1.0, adaptive=True)),
        pytest.param(fm.Mime(lr=0.1), gaussian(0.05, 1.0), marks=MORE),
    ],
    ids=str,
)
def test_the_server_clips_what_it_decodes(deployed, seeded, algorithm, privacy):
    uplink = fm.codecs.ErrorFeedback(fm.codecs.Quantize(4))
    compare(deployed, private(algorithm, privacy=privacy, uplink=uplink, selection=EVERYONE, rounds=2))


def test_clients_with_data_of_their_own(tmp_path, clock, seeded):
    data, names = federation(), [f"site-{i}" for i in range(CLIENTS)]
    given = private(fm.Scaffold(lr=0.1))
    deploy = Deploy(clients=names, wait=1.0, rejoin=0.2, poll=0.001)
    config = {name: v for name, v in given.items() if name != "data"} | {"deploy": deploy}
    app = lambda: client_app(config, data=lambda name: data.client(names.index(name)))  # noqa: E731
    result = serve(Network(app, tmp_path / "state", names), Deployment.of(config), tmp_path / "run", test=data.test)
    assert_same(result, fm.run(**given))


def test_noise_and_cohorts_do_not_follow_from_the_seed(tmp_path, clock):
    from helpers.flower_runs import Deployed

    given = private(rounds=6)
    one, other = (Deployed(tmp_path / name, given).run() for name in ("one", "other"))
    simulated = fm.run(**given)
    for a, b in ((one, other), (one, simulated), (other, simulated)):
        assert not torch.equal(a.params, b.params)
        assert [r.cohort for r in a.history] != [r.cohort for r in b.history]
        assert [r.epsilon for r in a.history] == [r.epsilon for r in b.history]


def test_cohorts_without_amplification_follow_the_schedule(deployed):
    given = private(selection=fm.Cyclic(m=2), rounds=3)
    cohorts = [r.cohort for r in deployed(given).run().history]
    assert sorted(i for cohort in cohorts for i in cohort) == list(range(CLIENTS))
    assert cohorts == [r.cohort for r in fm.run(**given).history]


def test_noise_of_the_system_is_normal():
    numbers = system_normal(2**20 + 3).numpy()
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.std() - 1) < 0.01
    shares = [(numbers < bound).mean() for bound in (-2, -1, 0, 1, 2)]
    assert np.allclose(shares, [0.5 * math.erfc(-bound / math.sqrt(2)) for bound in (-2, -1, 0, 1, 2)], atol=0.005)
    assert len(np.unique(numbers)) > 0.999 * len(numbers)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01


class Killed(BaseException):
    """What nobody catches."""


CORRELATED = fm.privacy.MatrixFactorization(0.05, 1.0, 1e-3, bands=3)


@pytest.mark.parametrize("algorithm", [fm.Scaffold(lr=0.1), pytest.param(fm.Mime(lr=0.1), marks=MORE)], ids=str)
def test_noise_that_is_correlated_over_rounds(deployed, seeded, algorithm):
    compare(deployed, private(algorithm, selection=fm.Cyclic(m=3), privacy=CORRELATED))


@pytest.mark.parametrize(
    "privacy", [gaussian(0.05, 1.0), pytest.param(CORRELATED, marks=MORE)], ids=["Gaussian", "MatrixFactorization"]
)
def test_a_repeated_round_publishes_what_was_published(deployed, privacy):
    """Killed after the model was shown and before its checkpoint; then a client is missing, so the sum is another."""
    published, killed = [], []

    def show(record, model):
        published.append((record.round, torch.cat([v.detach().flatten() for v in model.parameters()])))
        if record.round not in killed:
            killed.append(record.round)
            raise Killed

    given = private(selection=EVERYONE, rounds=3, privacy=privacy)
    made = deployed(given | {"callbacks": [show]})
    for t in range(3):
        with pytest.raises(Killed):
            made.run()
        made.network.nodes[100 + t].online = False
    result = made.run()
    for number in (1, 2, 3):
        first, second = (v for t, v in published if t == number)
        assert torch.equal(first, second)
    assert len(result.history) == 3
    assert [r.epsilon for r in result.history] == [r.epsilon for r in fm.run(**given).history]


def test_sums_of_the_extra_phase_are_sent_once(deployed):
    """Mime sends the noisy gradient to clients in the round that is repeated without one of them."""
    made = deployed(private(fm.Mime(lr=0.1), selection=EVERYONE, rounds=1))
    killed = []

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == wire.TRAIN and not killed:
            killed.append(1)
            raise Killed
        return reply

    made.network.tamper = tamper
    with pytest.raises(Killed):
        made.run()
    made.network.nodes[102].online = False
    made.run()
    sent = [m.content["vectors"] for m in made.network.sent if m.metadata.message_type == wire.TRAIN]
    others = {name: {vectors[name].data for vectors in sent} for name in sent[0] if name != "x"}
    assert others
    assert all(len(data) == 1 for data in others.values())


@pytest.mark.parametrize(
    "damage",
    [
        "gone",
        pytest.param("cut", marks=MORE),
        pytest.param("bit", marks=MORE),
        pytest.param("another run's", marks=MORE),
        "older",
    ],
)
def test_noise_is_never_drawn_again(deployed, damage):
    made = deployed(private(rounds=2))
    made.run()
    folder = made.folder / "run" / "releases"
    (first, second) = sorted(folder.iterdir())
    sentence = "Cannot repeat round 2 because"
    checkpoints = sorted((made.folder / "run" / "checkpoints").iterdir())
    if damage == "older":
        for path in checkpoints:  # the run starts again
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        first.unlink()
        sentence = "Cannot play round 1 because the noisy sums of round 1 are not in"
    else:
        (checkpoints[-1] / "manifest.json").write_bytes(b"")  # the last round is repeated
        if damage == "gone":
            for path in (first, second):
                path.unlink()
            sentence = "Cannot play round 2 because the noisy sums of round 1 are not in"
        elif damage == "cut":
            second.write_bytes(second.read_bytes()[:20])
        elif damage == "bit":
            raw = second.read_bytes()
            second.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        else:
            second.unlink()
            Releases(folder, "0" * 32, SystemNoise())._write(second, 1, torch.zeros(75))
            sentence = "belongs to another run"
    with pytest.raises(ValueError, match=sentence):
        made.run()


def test_releases_of_old_rounds_are_deleted(deployed):
    made = deployed(private(fm.Scaffold(lr=0.1), rounds=5))
    made.run()
    rounds = [path.name.split("-")[0] for path in (made.folder / "run" / "releases").iterdir()]
    assert sorted(rounds) == ["2", "2", "3", "3", "4", "4"]


def test_a_client_that_is_away_contributes_zero(tmp_path, clock):
    from helpers.flower_runs import Deployed

    def moved(name, away, refused=(), **changes):
        given = private(rounds=1, privacy=gaussian(0.05, 0.0), selection=EVERYONE) | changes
        made = Deployed(tmp_path / name, given)
        for node in away:
            made.network.nodes[100 + node].online = False
        made.network.tamper = lambda request, reply: (
            Message(Error(2, "no"), reply_to=request)
            if request.metadata.message_type == wire.TRAIN and request.metadata.dst_node_id - 100 in refused
            else reply
        )
        result = made.run()
        assert not result.history[0].abandoned
        return result.params - torch.cat([v.detach().flatten() for v in given["model"].parameters()])

    whole, without = moved("whole", []), moved("without", [BAD])
    alone = moved("alone", [], selection=fm.FixedCohorts([[BAD]]))
    assert torch.allclose(whole - without, alone / CLIENTS, atol=1e-7)
    assert not moved("none", [], range(CLIENTS)).any()
    noise = moved("noise", [], range(CLIENTS), privacy=gaussian(0.05, 1.0))
    assert 0.3 < float(noise.std()) / (0.05 / CLIENTS) < 3


@pytest.mark.parametrize("algorithm", [fm.FedAvg(lr=0.1), fm.Scaffold(lr=0.1)], ids=lambda a: type(a).__name__)
def test_late_clients_do_not_count_because_nobody_else_answers(deployed, clock, algorithm):
    """A client that answers keeps the server from waiting for the others; without it, they count no more than with it."""
    given = private(algorithm, rounds=1, privacy=gaussian(0.05, 0.0), selection=fm.FixedCohorts([[1, 3], [0, 1, 3]]))
    made, hour = deployed(given), 3600.0
    listed, late = made.network.get_nodes, [made.network.nodes[101], made.network.nodes[103]]
    for node in late:
        node.online = False

    def get_nodes():
        for node in late:
            node.online = node.online or clock.now - 1000 > hour
        return listed()

    made.network.get_nodes = get_nodes
    (record,) = (result := made.run()).history
    assert clock.now - 1000 > hour
    assert (record.cohort, record.late, record.abandoned) == ([1, 3], [1, 3], False)
    assert torch.equal(result.params, torch.cat([v.detach().flatten() for v in given["model"].parameters()]))


def test_an_upload_that_is_not_clipped_is_refused(deployed, caplog):
    given = private(rounds=1, privacy=gaussian(0.05, 0.0), selection=EVERYONE)
    made = deployed(given)

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id == 100 + BAD and request.metadata.message_type == wire.TRAIN:
            values = np.frombuffer(reply.content["vectors"]["delta"].data, np.float32) * np.float32(1.01)
            reply.content["vectors"] = ArrayRecord(
                {"delta": Array("float32", (len(values),), "fedmos.raw", values.tobytes())}
            )
        return reply

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    (line,) = (line for line in caplog.messages if "Refused" in line)
    assert f"client '{BAD}' (node {100 + BAD}) in round 1: its uploads have a norm of 0.0505, over the bound" in line
    assert not torch.equal(result.params, fm.run(**given).params)


def test_the_budget_ends_the_run_and_a_restart_continues_it(deployed):
    spent = [r.epsilon for r in fm.run(**private(rounds=5, selection=EVERYONE)).history]
    made = deployed(private(rounds=5, selection=EVERYONE, privacy=gaussian(0.05, 1.0, budget=spent[2])))

    def tamper(request: Message, reply: Message) -> Message:
        if wire.round_of(request.content) == 1:
            made.network.tamper = lambda request, reply: reply
            raise Killed
        return reply

    made.network.tamper = tamper
    with pytest.raises(Killed):
        made.run()
    for _ in range(2):
        result = made.run()
        assert [r.epsilon for r in result.history] == spent[:3]
        assert result.info["stopped"] == "privacy budget"


def test_messages_tell_a_client_nothing_about_the_others(deployed):
    made = deployed(private(selection=EVERYONE, rounds=2))
    made.run()
    headers = [m.content["fedmos"] for m in made.network.sent if m.metadata.message_type == wire.TRAIN]
    assert len(headers) == 2 * CLIENTS
    for header in headers:
        assert (header["p"], header["width"], header["S"], header["W"]) == (1 / CLIENTS, 0, CLIENTS, 1.0)
        assert header["reports"] == ""


@pytest.mark.parametrize(
    ("changes", "deploy", "sentence"),
    [
        ({}, {"train_metrics": True}, "Cannot use privacy= with train_metrics=True because clients would send losses"),
        (
            {"uplink": fm.codecs.Quantize(4), "algorithm": fm.Scaffold(lr=0.1)},
            {},
            "Cannot use privacy= with uplink=.* and Scaffold in a deployment .* and its state depends on them; use",
        ),
        ({"uplink": {"delta": fm.codecs.Sign()}, "algorithm": fm.FedNova(lr=0.1)}, {}, "FedNova .* it also sends"),
        ({"selection": fm.PowerOfChoice(m=2, d=4)}, {}, "Cannot use privacy= with PowerOfChoice because it asks"),
        ({"selection": fm.ActiveFL(m=2)}, {}, "Cannot use privacy= with ActiveFL because its clients report"),
        ({"system": fm.System(quorum=0.5)}, {}, "Cannot use privacy= with a quorum because an abandoned round"),
        ({"aggregation": fm.aggregation.Median()}, {}, r"Cannot use aggregation=Median\(\) with 'privacy' because"),
        ({"update_norms": True}, {}, "Cannot use privacy= with update_norms because"),
    ],
    ids=lambda v: "" if isinstance(v, str) else ",".join(v),
)
def test_what_reveals_more_is_refused(deployed, changes, deploy, sentence):
    with pytest.raises(ValueError, match=sentence):
        deployed(private(**changes), **deploy)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (wire.LOSSES, {"batch": False, "keep": False}),
        (wire.GRADIENTS, {"keep": False}),
        (wire.EVALUATE, {}),
        (wire.UPLOAD, {"reports": ""}),
        (wire.TRAIN, JOB | {"reports": "loss"}),
    ],
    ids=str,
)
def test_a_client_answers_nothing_else(tmp_path, kind, asked):
    client = ClientRuntime(Deployment.of(private()), "0", str(tmp_path), None)
    with pytest.raises(wire.RefusedError, match="this client's configuration has privacy: it sends clipped uploads"):
        client.handle(kind, wire.compose({"run": "0" * 32, "round": 0, "client": 0} | asked))


def test_a_client_with_another_bound_is_not_accepted(deployed, caplog):
    made = deployed(private(rounds=1, selection=EVERYONE))
    other = made.given | {"privacy": gaussian(1.0, 1.0)}
    made.network.nodes[100 + BAD]._app = lambda: client_app(other)
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert result.history[0].late == [BAD]
    assert any(f"node {100 + BAD}" in line.lower() for line in caplog.messages)
