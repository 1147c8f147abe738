"""NIID-Bench's splits, and its SCAFFOLD and FedNova beside a direct transcription of their formulas."""

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.experiments.reproduce.niid_bench import FedNova, Labels, Quantities, Scaffold

LABELS = np.random.default_rng(0).permutation(np.arange(5000) % 10)


def test_client_i_has_class_i_and_classes_are_divided_equally():
    split = Labels().split(LABELS, 10, seed=0)
    held = [np.bincount(LABELS[part], minlength=10) for part in split]
    assert all((own > 0).sum() == 2 and own[i] > 0 for i, own in enumerate(held))
    assert sorted(np.concatenate(list(split))) == list(range(5000))
    for column in np.transpose(held):
        assert np.ptp(column[column > 0]) <= 1
    assert len(set(map(len, split))) > 2


def test_quantities_are_of_one_distribution():
    split = Quantities().split(LABELS, 10, seed=0)
    assert sorted(np.concatenate(list(split))) == list(range(5000))
    assert min(map(len, split)) >= 10
    assert max(map(len, split)) > 1000
    largest = max(split, key=len)
    assert np.allclose(np.bincount(LABELS[largest]) / len(largest), 0.1, atol=0.05)
    with pytest.raises(ValueError, match="use a larger 'alpha'"):
        Quantities(alpha=0.001).split(LABELS, 10, seed=0)


LR, MOMENTUM, DECAY, ROUNDS = 0.1, 0.9, 1e-3, 3
STEPS = (6, 2)  # epochs of one batch, by client


def _local(model, x, y, correction, steps):
    """Train as `train_net_scaffold` does; without a correction as `train_net`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        torch.nn.utils.vector_to_parameters(flat - LR * correction, model.parameters())
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def _reference(method, model, clients, weights):
    x = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in clients]
    for _ in range(ROUNDS):
        ends, changes = [], []
        for i, (data, steps) in enumerate(zip(clients, STEPS, strict=True)):
            torch.nn.utils.vector_to_parameters(x.clone(), model.parameters())
            ends.append(_local(model, *data, c - own[i], steps))
            if method == "scaffold":
                new = own[i] - c + (x - ends[-1]) / (steps * LR)
                changes.append(new - own[i])
                own[i] = new
        if method == "scaffold":
            x = sum(w * end for w, end in zip(weights, ends, strict=True))
            c = c + sum(changes) / len(clients)
        else:
            a = [(k - MOMENTUM * (1 - MOMENTUM**k) / (1 - MOMENTUM)) / (1 - MOMENTUM) for k in STEPS]
            mean = sum(w * (x - end) / one for w, end, one in zip(weights, ends, a, strict=True))
            x = x - sum(w * one for w, one in zip(weights, a, strict=True)) * mean
    return x


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_rounds_are_niid_benchs(method, engine):
    torch.manual_seed(0)
    base = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    owner = np.repeat(
        [0, 1], [24, 8]
    )  # 6 and 2 batches of 4; the samples of a client are alike, so that order is nothing
    x, y = base[owner], owner
    data = fm.Dataset("alike", x, y).partition(fm.partition.Fixed([range(24), range(24, 32)]))
    model = torch.nn.Linear(5, 2)
    reference = torch.nn.Linear(5, 2)
    reference.load_state_dict(model.state_dict())
    momentum = fm.local.SGD(momentum=MOMENTUM)
    algorithm, local = {
        "scaffold": (Scaffold(lr=LR, momentum=MOMENTUM), None),
        "fednova": (FedNova(lr=LR, momentum=MOMENTUM), momentum),
    }[method]
    result = fm.run(
        model, data, algorithm, fm.Full(), rounds=ROUNDS, local_epochs=1, batch_size=4,
        weight_decay=DECAY, local=local, engine=engine,
    )  # fmt: skip
    clients = [(torch.from_numpy(x[owner == i]), torch.from_numpy(y[owner == i])) for i in (0, 1)]
    torch.testing.assert_close(
        result.params, _reference(method, reference, clients, (0.75, 0.25)), rtol=1e-4, atol=1e-5
    )


def test_more_classes_than_there_are_is_refused():
    most = len(set(LABELS.tolist()))
    with pytest.raises(ValueError, match=f"Labels: 'classes' must be ≤ {most}, the number of classes, got {most + 1}"):
        Labels(classes=most + 1).split(LABELS, 10, seed=0)
