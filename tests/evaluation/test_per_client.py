"""How evenly clients are served."""

import math

import pytest
import torch

import fedmos as fm
from fedmos.evaluation import per_client as fairness


def by_hand(result, digits, model):
    """Each client's accuracy, in ascending order, one client after another."""
    torch.nn.utils.vector_to_parameters(result.params, model.parameters())
    found = []
    for x, y in map(digits.client, range(len(digits))):
        found.append(float((model(digits.inputs(x)).argmax(1) == y).double().mean()))
    return sorted(found)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_client_accuracy_is_measured_on_the_clients_own_data(quick, digits, tmp_path, engine):
    assert len(set(digits.sizes.tolist())) > 3  # ragged
    result = quick(out=tmp_path / "run", engine=engine, rounds=5)
    should = by_hand(result, digits, fm.models.logistic(features=64).eval())
    found = fm.Result.load(tmp_path / "run").info["client_accuracy"]
    assert found["sorted"] == pytest.approx(should, abs=1e-12)
    assert math.isclose(found["worst_tenth"], sum(should[:2]) / 2)
    assert math.isclose(found["mean"], sum(should) / 20)


def test_client_accuracy_is_that_of_the_final_model(quick, tmp_path):
    first = quick(out=tmp_path / "run", rounds=2).info["client_accuracy"]
    more = quick(out=tmp_path / "run", rounds=9, algorithm=fm.FedAvg(lr=0.1), resume=True).info["client_accuracy"]
    assert more["sorted"] != first["sorted"]
    assert more == quick(out=tmp_path / "other", rounds=9).info["client_accuracy"]

    def stop(record):
        raise KeyboardInterrupt

    quick(out=tmp_path / "cut", callbacks=[stop])
    assert "client_accuracy" not in fm.Result.load(tmp_path / "cut").info


def test_client_accuracy_needs_classes(tmp_path):
    data = fm.FederatedData.from_arrays([([[1.0], [2.0]], [[0.5], [1.0]])] * 3)
    how = {"rounds": 1, "local_steps": 1, "loss": "mse"}
    fm.run(torch.nn.Linear(1, 1), data, fm.FedAvg(lr=0.1), fm.Full(), **how, out=tmp_path / "run")
    assert fm.Result.load(tmp_path / "run").info["client_accuracy"] == {}


def test_many_clients_are_thinned_but_all_count():
    values = torch.rand(5000, dtype=torch.float64)
    found = fairness.distribution(values, None)
    ascending = values.sort().values
    assert len(found["sorted"]) == 201
    assert (found["sorted"][0], found["sorted"][-1]) == (float(ascending[0]), float(ascending[-1]))
    assert math.isclose(found["worst_tenth"], float(ascending[:500].mean()))
