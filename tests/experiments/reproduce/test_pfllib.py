"""PFLlib's split and the accuracy of clients in a record."""

import numpy as np
import pytest

import fedmos as fm
from fedmos.experiments.reproduce.pfllib import Pathological, cnn
from fedmos.experiments.reproduce.record import _clients


def test_the_pathological_split():
    """Four successive clients share two classes; every sample is assigned once, in parts of random size."""
    labels = np.random.default_rng(0).permutation(np.arange(4000) % 10)
    split = Pathological().split(labels, 20, seed=0)
    assert [sorted(set(labels[part])) for part in split][::4] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert all(len(set(labels[part])) == 2 for part in split)
    assert sorted(np.concatenate(list(split))) == list(range(4000))
    sizes = [len(part) for part in split]
    assert min(sizes) >= 2 * 10
    assert len(set(sizes)) > 10
    assert [len(part) for part in Pathological().split(labels, 20, seed=1)] != sizes


def test_the_network_has_pfllibs_size():
    assert sum(p.numel() for p in cnn().parameters()) == 582_026


@pytest.mark.extended
def test_a_record_has_the_best_accuracy_under_the_models_that_clients_use():
    data = fm.datasets.load("digits").partition(Pathological(least=10), clients=10, seed=0, holdout=0.25)
    common = {"rounds": 2, "local_steps": 2, "batch_size": 8, "evaluate_clients": 1, "engine": "loop"}
    model = fm.models.logistic(features=64)
    for algorithm, kind in ((fm.FedAvg(lr=0.1), "client"), (fm.Ditto(lr=0.1), "personal")):
        history = fm.run(model, data, algorithm, fm.Full(), **common).history
        values = [record.client_metrics[f"{kind}_accuracy_weighted"] for record in history]
        assert np.allclose([_clients(history)["best"], _clients(history)["last"]], [max(values), values[-1]], rtol=1e-5)
