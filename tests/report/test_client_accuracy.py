"""Clients across methods: the histogram of their accuracies, and each client against training alone."""

import json
import re

import pytest

import fedmos as fm
from fedmos.experiments.seed_statistics import MethodResult
from fedmos.experiments.table import ComparisonTable
from fedmos.report import page
from fedmos.report.client_accuracy import client_accuracy, client_scatter
from fedmos.report.study import read_study


def method(label, accuracies, algorithm="FedAvg(lr=0.1)", model="global"):
    """A method with a run for each list of accuracies by client; None for a client that was not evaluated."""
    infos = {}
    for seed, values in enumerate(accuracies):
        known = {i: v for i, v in enumerate(values) if v is not None}
        ascending = sorted(known.values())
        each = {"ids": list(known), "accuracies": list(known.values())}
        found = {"mean": sum(ascending) / len(ascending), "worst_tenth": ascending[0], "sorted": ascending}
        found |= {"samples": "test", "model": model, "each": each}
        infos[seed] = {"algorithm": algorithm, "client_accuracy": found}
    return MethodResult(label=label, lr=0.1, runs={seed: fm.History() for seed in infos}, infos=infos)


def test_the_histogram_is_the_mean_over_seeds():
    found = client_accuracy(method("a", [[0.0, 0.02, 0.5, 1.0], [1.0, 1.0]]))
    assert found.histogram[0] == 0.25
    assert found.histogram[10] == 0.125
    assert found.histogram[19] == pytest.approx((0.25 + 1) / 2)
    assert sum(found.histogram) == pytest.approx(1)
    assert found.tested
    assert not found.personal


def test_clients_are_held_against_training_alone():
    alone = method("own data only", [[0.5, 0.6, 0.7], [0.1, None]], "LocalOnly(lr=0.1)", "personal")
    other = method("FedAvg", [[0.9, 0.6, 0.2], [0.2, 0.3]])
    found = client_scatter([other, alone], "FedAvg")
    assert (found.reference, found.alone) == ("own data only", True)
    gains, none = found.methods
    assert none is None
    assert list(zip(gains.reference, gains.own, strict=True)) == [(0.5, 0.9), (0.6, 0.6), (0.7, 0.2), (0.1, 0.2)]
    assert (gains.better, gains.worse) == (0.5, 0.25)
    second = method("SCAFFOLD", [[0.9, 0.9, 0.9]])
    assert client_scatter([other, second], "FedAvg").reference == "FedAvg"
    assert client_scatter([other], "FedAvg") is None
    assert client_scatter([other, method("x", [[None, None, 0.3]])], "x").methods[0].own == [0.2]


def test_tables_have_mean_and_worst_tenth():
    table = ComparisonTable(
        metric="accuracy", target=None, baseline="a", results=[method("a", [[0.5, 0.7]]), method("b", [[0.1, 0.2]])]
    )
    headings = [column.heading for column in table.columns(brief=True)]
    assert headings[-2:] == ["mean accuracy of clients", "accuracy of the worst 10 % of clients"]
    assert [row[-2:] for row in table.cells(brief=True)] == [["0.600", "0.500"], ["0.150", "0.100"]]
    assert table.to_dict()["methods"][0]["mean"]["mean_clients"] == pytest.approx(0.6)


def test_the_page_shows_both(tmp_path):
    digits = fm.datasets.load("digits")
    data = digits.partition(fm.partition.ByClass(classes=2, size=(6, 30)), clients=10, seed=0, holdout=0.3)
    more = {"rounds": 2, "local_steps": 3, "batch_size": 4, "evaluate_clients": 2}
    results = []
    for algorithm in (fm.FedAvg(lr=0.1), fm.LocalOnly(lr=0.1)):
        out = tmp_path / type(algorithm).__name__
        results.append(fm.run(fm.models.logistic(64), data, algorithm, fm.Full(), **more, out=out))
    text = page.html(read_study([tmp_path / "FedAvg", tmp_path / "LocalOnly"]))
    drawn = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    own = drawn["gains"]["methods"][0]
    assert own["own"] == pytest.approx(results[0].client_accuracy.tolist(), rel=1e-5)
    assert own["reference"] == pytest.approx(results[1].client_score("personal_accuracy").tolist(), rel=1e-5)
    assert sum(drawn["served"][0]["histogram"]) == pytest.approx(1)
    for name in ("served", "spread", "gains", "client_accuracy", "client_accuracy_worst"):
        assert f'id="plot-{name}"' in text
    assert "own test samples" in text
    assert "clients better than with training alone" in text
