"""Losses that would train something else than what the user wrote are refused before the first round."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm

STATE = {"calls": 0}


def train(loss, targets="classes", outputs=3, engine="loop", sizes=(5, 3, 4), net=None):
    rng = np.random.default_rng(1)
    make = {
        "classes": lambda n: rng.integers(3, size=n),
        "numbers": lambda n: rng.normal(size=n).astype("float32"),
        "columns": lambda n: rng.normal(size=(n, 1)).astype("float32"),
        "labels": lambda n: rng.integers(2, size=(n, 3)),
        "one label": lambda n: rng.integers(2, size=n),
    }[targets]
    data = fm.FederatedData.from_arrays([(rng.normal(size=(n, 8)).astype("float32"), make(n)) for n in sizes])
    torch.manual_seed(0)
    net = net or nn.Linear(8, outputs)
    how = {"rounds": 2, "local_steps": 2, "dtype": torch.float64, "engine": engine}
    return fm.run(net, data, fm.FedAvg(lr=0.1), fm.Full(), loss=loss, **how)


class Scaled(nn.Module):
    """A cross entropy with a parameter of its own."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3, dtype=torch.float64), requires_grad=trained)

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs + self.bias, targets)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs, targets):
        self.calls += 1
        return F.cross_entropy(outputs, targets)


def counting(outputs, targets):
    STATE["calls"] += 1
    return F.cross_entropy(outputs, targets)


def correlation(outputs, targets):
    return -torch.corrcoef(torch.stack([outputs[:, 0], targets]))[0, 1]


def test_parameters_of_a_loss_and_penalties_are_refused():
    net = nn.Linear(8, 3)
    sentence = r"Cannot train with the loss {} because it computes with a tensor of shape .* use weight_decay="
    with pytest.raises(ValueError, match=sentence.format("Scaled")):
        train(Scaled())

    def penalised(outputs, targets):
        return F.cross_entropy(outputs, targets) + 0.1 * sum((p**2).sum() for p in net.parameters())

    with pytest.raises(ValueError, match=sentence.format("penalised")):
        train(penalised, net=net)
    assert torch.equal(train(Scaled(trained=False)).params, train("cross_entropy").params)


@pytest.mark.parametrize("loss", [counting, Counting()], ids=["a global variable", "a buffer"])
def test_losses_that_change_variables_are_warned_of(loss, caplog):
    """A function that only records its calls is fine, so it is not refused."""
    result = train(loss)
    assert "The loss changes variables when it is called" in caplog.text
    assert torch.equal(result.params, train("cross_entropy").params)


def test_losses_that_draw_random_numbers_are_refused():
    with pytest.raises(ValueError, match=r"for the same outputs and targets it is .* and then"):
        train(lambda o, t: F.cross_entropy(o * torch.rand(()), t))


@pytest.mark.filterwarnings("ignore:cov")
def test_a_loss_that_is_not_defined_for_single_samples_is_no_mean():
    for engine in ("loop", "batched"):
        with pytest.raises(ValueError, match=r"on each alone nan, with other gradients; use fm.losses.Batch"):
            train(correlation, "numbers", 1, engine)
    assert train(fm.losses.Batch(correlation), "numbers", 1).history


def test_a_batch_loss_that_ignores_its_mask_is_refused():
    def contrastive(outputs, targets, mask):
        return torch.logsumexp(outputs @ outputs.T, 1).mean()

    def masked(outputs, targets, mask):
        scores = (outputs @ outputs.T).masked_fill(~mask, -torch.inf)
        return torch.where(mask, torch.logsumexp(scores, 1), 0).sum() / mask.sum()

    for engine in ("loop", "batched"):
        with pytest.raises(ValueError, match=r"Batch: 'f' must leave samples out where its mask is False, but contras"):
            train(fm.losses.Batch(contrastive), engine=engine)
    loop, batched = (train(fm.losses.Batch(masked), engine=engine).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.HuberLoss(reduction="sum"), F.l1_loss, lambda o, t: ((o - t) ** 2).mean()]
)
def test_outputs_and_targets_are_not_broadcast(loss):
    """To declare the loss as `fm.losses.Batch`, as for other losses that are no means, would train all pairs."""
    with pytest.raises(ValueError, match=r"shape \(10, 1\) and the targets \(10,\), so that the loss .* every other"):
        train(loss, "numbers", 1, sizes=(5, 1, 4))
    flat = nn.Sequential(nn.Linear(8, 1), nn.Flatten(0))
    with pytest.raises(ValueError, match=r"shape \(10,\) and the targets \(10, 1\), so that the loss"):
        train(loss, "columns", sizes=(5, 1, 4), net=flat)
    assert train(loss, "columns", 1).history


@pytest.mark.parametrize(
    ("targets", "outputs", "hint"),
    [
        ("labels", 3, r"targets that are real numbers, y.astype\('float32'\)"),
        ("one label", 1, r"targets of shape \(n, 1\) that are real numbers"),
    ],
)
def test_labels_that_a_loss_of_pytorch_does_not_take_get_a_hint(targets, outputs, hint):
    with pytest.raises(ValueError, match=f"Cannot apply the loss to the model's output .*; use {hint}"):
        train(nn.BCEWithLogitsLoss(), targets, outputs)


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss()])
def test_classes_on_the_last_axis_get_a_hint(loss):
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, 4, 8)), rng.integers(9, size=(n, 4))) for n in (5, 3)]
    how = {"algorithm": fm.FedAvg(lr=0.1), "selection": fm.Full(), "rounds": 1, "local_steps": 1, "loss": loss}
    data = fm.FederatedData.from_arrays(clients)
    with pytest.raises(ValueError, match=r"; put the classes on axis 1, outputs\.movedim\(-1, 1\)"):
        fm.run(nn.Linear(8, 9), data, **how)
    assert fm.run(nn.Linear(8, 9), data, outputs=lambda o: o.movedim(-1, 1), **how).history
