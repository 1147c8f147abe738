"""Samples whose target is ignored do not count in accuracies and statistics."""

import pytest
import torch

import fedmos as fm
from fedmos.core.losses import PADDING


def federation():
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    y[[1, 5, 6, 8, 9, 10, 11]] = PADDING
    clients = {"a": (x[:4], y[:4]), "b": (x[4:8], y[4:8]), "unlabelled": (x[8:], y[8:])}
    return fm.FederatedData.from_arrays(clients, test=(x, y))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_accuracies_are_those_of_labelled_samples(engine, tmp_path):
    data = federation()
    options = {"rounds": 3, "local_steps": 2, "batch_size": 2, "engine": engine, "out": tmp_path / "run"}
    result = fm.run(fm.models.logistic(3, 2), data, fm.FedAvg(lr=0.5), fm.Full(), **options)

    def accuracy(x, y):
        right = result.predict(x).argmax(1) == y
        return float(right[y != PADDING].double().mean())

    assert result.history[-1].accuracy == pytest.approx(accuracy(*data.test))
    expected = {name: accuracy(*data.client(name)) for name in ("a", "b")}
    assert result.info["client_accuracy"]["clients"] == pytest.approx(expected)
    assert result.info["client_accuracy"]["mean"] == pytest.approx(sum(expected.values()) / 2)


def test_descriptions_count_labelled_samples():
    labels = federation().describe().labels
    assert labels.classes == 2
    assert labels.counts.sum(1).tolist() == [3, 2, 0]
