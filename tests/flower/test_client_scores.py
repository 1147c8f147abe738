"""Evaluation of the clients of a deployment by themselves: the simulator's numbers, from test samples that stay there."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedmos.flower import ClientPolicy, Deploy, client_app, wire
from fedmos.flower.deployment import Deployment
from fedmos.flower.server import serve
from helpers.flower_runs import CLIENTS, Deployed, arguments, federation


def with_tests(sizes: tuple[int, ...] = (5, 8, 3, 6, 9, 4)) -> fm.FederatedData:
    g = torch.Generator().manual_seed(4)
    given = federation()
    tests = [(torch.randn(n, 5, generator=g), torch.randint(3, (n,), generator=g)) if n else None for n in sizes]
    return fm.FederatedData.from_arrays([given.client(i) for i in range(CLIENTS)], given.test, tests=tests)


METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": fm.FedAvg(lr=0.1), "lr_decay": 0.8},
    "a model of its own that is sent": {"algorithm": fm.FedACG(lr=0.1)},
    "own models": {"algorithm": fm.Ditto(lr=0.1), "downlink": fm.codecs.Quantize(8)},
    "own parameters": {"algorithm": fm.Scaffold(lr=0.1), "personal": ["2.*"]},
    "own statistics": {
        "algorithm": fm.FedAvg(lr=0.1),
        "batchnorm": "local",
        "model": torch.nn.Sequential(
            torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ),
    },
    "secure sums and a local optimiser": {
        "algorithm": fm.FedAvg(lr=0.1),
        "local": fm.local.SGD(momentum=0.5, keep=True),
        "aggregation": fm.aggregation.Secure(),
    },
}


def given_by(method: str, **changes: Any) -> dict[str, Any]:
    common: dict[str, Any] = {
        "data": with_tests(),
        "evaluate_clients": fm.EvaluateClients(every=2, finetune_steps=3),
        "metrics": {"f1": fm.metrics.MacroF1()},
    }
    return arguments(**common | METHODS[method] | changes)


def assert_same_scores(got: fm.Result, expected: fm.Result) -> None:
    for mine, theirs in zip(got.history, expected.history, strict=True):
        for name in ("client_accuracy", "client_accuracy_worst", "personal_accuracy"):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=1e-9), (mine.round, name)
        assert (mine.client_metrics is None) == (theirs.client_metrics is None)
        if mine.client_metrics is not None:
            assert mine.client_metrics == pytest.approx(theirs.client_metrics, abs=1e-6)
        assert (mine.bytes_down, mine.bytes_up) == (theirs.bytes_down, theirs.bytes_up)
    torch.testing.assert_close(got.client_accuracy, expected.client_accuracy, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_the_simulators(deployed, method):
    given = given_by(method)
    assert_same_scores(deployed(given).run(), fm.run(**given))


def test_a_sample_of_clients_and_a_restart(deployed):
    given = given_by("own models", evaluate_clients=fm.EvaluateClients(every=1, sample=3))
    made = deployed(given)
    made.run(rounds=2)
    assert_same_scores(made.run(), fm.run(**given))


def test_nothing_but_numbers_is_sent(deployed):
    seen = []

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == wire.SCORES:
            seen.append({name: list(array.shape) for name, array in reply.content["numbers"].items()})
            assert set(reply.content) == {"fedmos", "numbers"}
        return reply

    made = deployed(given_by("FedAvg"))
    made.network.tamper = tamper
    made.run()
    assert len(seen) == 2 * CLIENTS
    assert all(set(map(tuple, shapes.values())) == {(1,)} for shapes in seen)


def test_clients_that_bring_test_samples_of_their_own(tmp_path, clock):
    given, data = given_by("FedAvg"), with_tests()
    expected = fm.run(**given)
    del given["data"]
    made = Deployed(tmp_path, given, clients=[f"c{i}" for i in range(CLIENTS)])
    loaders = {"data": lambda name: data.client(int(name[1:])), "tests": lambda name: data.tests[int(name[1:])]}
    for node in made.network.nodes.values():
        node._app = lambda: client_app(made.given, **loaders)
    result = serve(made.network, Deployment.of(made.given), tmp_path / "run", data.test)
    assert_same_scores(result, expected)


def test_clients_without_test_samples(deployed, caplog):
    """They send no scores; without any, the record has none."""
    made = deployed(given_by("FedAvg", data=with_tests((5, 0, 3, 0, 9, 4))))
    result = made.run()
    assert result.client_accuracy.isnan().nonzero().flatten().tolist() == [1, 3]
    assert_same_scores(result, fm.run(**given_by("FedAvg", data=with_tests((5, 0, 3, 0, 9, 4)))))


def test_no_client_with_test_samples(deployed, caplog):
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = deployed(given_by("FedAvg", data=federation())).run()
    assert result.history[-1].client_accuracy is None
    assert "No client has sent scores" in caplog.text


@pytest.mark.parametrize("value", [7.0, -1.0])
def test_scores_out_of_range_are_refused(deployed, caplog, value):
    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == wire.SCORES and request.metadata.dst_node_id == 102:
            reply.content["numbers"]["client_accuracy"].data = np.array([value]).tobytes()
        return reply

    made = deployed(given_by("FedAvg"))
    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert result.client_accuracy.isnan().nonzero().flatten().tolist() == [2]
    assert "Refused the scores of client 2 in round 2: they are out of range" in caplog.messages


@pytest.mark.parametrize("policy", [ClientPolicy(metrics="never"), ClientPolicy(min_samples=4)])
def test_the_policy_of_a_client(deployed, policy):
    """A client that does not answer, or has too few test samples, is not evaluated."""
    made = deployed(given_by("FedAvg"))

    def app() -> ClientApp:
        return client_app(made.given, policy=policy)

    made.network.nodes[102]._app = app
    assert made.run().client_accuracy.isnan().nonzero().flatten().tolist() == [2]


def test_what_is_refused():
    privacy = fm.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(ValueError, match="privacy= with evaluate_clients in a deployment"):
        Deployment.of(given_by("FedAvg", selection=fm.Bernoulli(rate=0.5), privacy=privacy))
    with pytest.raises(ValueError, match=r"buffer=.* with evaluate_clients in a deployment"):
        Deployment.of(given_by("FedAvg", selection=fm.Uniform(m=1), buffer=fm.Buffer(2, 2)))
    with pytest.raises(ValueError, match=r"train_metrics=True in a deployment because the server would wait"):
        Deployment.of(arguments(selection=fm.Uniform(m=1), buffer=fm.Buffer(2, 2), deploy=Deploy(train_metrics=True)))
