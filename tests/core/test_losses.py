"""Losses and accuracies of sequences."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, grad_and_value, vmap

import fedmos as fm
from fedmos.config import registry as registry
from fedmos.core.flat_model import FlatModel
from fedmos.core.losses import PADDING, Loss
from fedmos.engine import inference
from fedmos.engine.batched import Batched
from fedmos.engine.batches import Chunk
from fedmos.engine.loop import Loop
from fedmos.engine.task import Task
from fedmos.evaluation import metrics
from fedmos.evaluation.measurable import has_classes


# Losses and accuracies of sequences
def sequences(B: int = 4, V: int = 5, T: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and targets of samples with T, T − 1, … positions; the last has none."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(B, V, T, dtype=torch.float64, generator=generator)
    targets = torch.randint(V, (B, T), generator=generator)
    for b in range(B):
        targets[b, T - b if b < B - 1 else 0 :] = PADDING
    return outputs, targets


def test_cross_entropy_of_sequences_is_a_mean_of_means():
    outputs, targets = sequences()
    loss = Loss("cross_entropy")
    expected = [
        -torch.stack([o.log_softmax(0)[c, t] for t, c in enumerate(y.tolist()) if c != PADDING]).mean()
        for o, y in zip(outputs[:-1], targets[:-1], strict=True)
    ]
    expected = torch.stack([*expected, torch.zeros((), dtype=torch.float64)])
    assert torch.allclose(loss.each(outputs, targets), expected, rtol=0, atol=1e-14)
    assert torch.allclose(loss.mean(outputs, targets), expected.mean(), rtol=0, atol=1e-14)
    assert not torch.allclose(F.cross_entropy(outputs, targets), expected.mean(), rtol=0, atol=1e-3)


def test_cross_entropy_of_sequences_under_vmap():
    outputs, targets = sequences()
    outputs, targets = torch.stack([outputs, 2 * outputs]), torch.stack([targets, targets.flip(0)])
    loss = Loss("cross_entropy")
    for function in (loss.mean, lambda o, t: loss.each(o, t).sum()):
        together = vmap(grad(function))(outputs, targets)
        for m in range(2):
            assert torch.allclose(together[m], grad(function)(outputs[m], targets[m]), rtol=0, atol=1e-14)
    assert not together[targets.unsqueeze(2).expand_as(together) == PADDING].any()


def test_cross_entropy_of_classes_is_pytorchs():
    outputs, targets = sequences()[0][..., 0], torch.tensor([0, 1, 2, 4])
    assert torch.equal(Loss("cross_entropy").mean(outputs, targets), F.cross_entropy(outputs, targets))
    assert torch.equal(
        Loss("cross_entropy").each(outputs, targets), F.cross_entropy(outputs, targets, reduction="none")
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_of_classes_under_vmap_has_the_bits_of_pytorchs(dtype):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 8, 5, dtype=dtype, generator=generator)
    targets = torch.randint(5, (3, 8), generator=generator)
    weight = torch.rand(3, 8, dtype=dtype, generator=generator)
    weight[:, 6:], targets[1, 3], targets[2] = 0, PADDING, PADDING
    loss = Loss("cross_entropy")
    theirs, ours = (
        vmap(grad_and_value(f))(outputs, targets, weight) for f in (loss.weighted, loss.weighted_under_vmap)
    )
    assert all(map(torch.equal, theirs, ours))
    assert ours[0][:, :6].any()
    assert not ours[0][2].any()
    with pytest.raises((RuntimeError, IndexError)):
        vmap(loss.weighted_under_vmap)(outputs, targets + 5, weight)


def test_other_losses_under_vmap_are_as_they_are():
    outputs, targets = sequences()
    weight = torch.full((len(outputs),), 0.25, dtype=torch.float64)
    probabilities = outputs[..., 0].softmax(1)
    for loss, y, t in (
        (Loss("cross_entropy"), outputs, targets),
        (Loss("cross_entropy"), outputs[..., 0], probabilities),
        (Loss("cross_entropy", torch.arange(5.0, dtype=torch.float64)), outputs[..., 0], targets[:, 0]),
        (Loss("mse"), outputs, outputs.flip(0)),
        (Loss(nn.CrossEntropyLoss(label_smoothing=0.1)), outputs[..., 0], targets[:, 0].clamp(min=0)),
    ):
        assert torch.equal(loss.weighted_under_vmap(y, t, weight), loss.weighted(y, t, weight))


def test_only_cross_entropy_knows_padding():
    outputs, targets = torch.zeros(2, 3), torch.tensor([[PADDING, 0, 0], [0, 0, 0]])
    assert Loss("mse").each(outputs, targets).tolist() == pytest.approx([PADDING**2 / 3, 0])


class Lookup(nn.Module):
    """Its outputs are its parameters: sample i gets row i."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self, x):
        return F.embedding(x, self.rows.flatten(1)).view(len(x), *self.rows.shape[1:])


def padded_task(model: nn.Module | None = None) -> Task:
    outputs, targets = sequences()
    data = fm.FederatedData.from_arrays([([0, 1], targets[:2]), ([2, 3], targets[2:])])
    flat_model = FlatModel(model or Lookup(outputs), torch.device("cpu"), torch.float64)
    how = {"local_steps": 1, "local_epochs": None, "batch_size": None}
    loss = Loss("cross_entropy").to(torch.device("cpu"), torch.float64, data.y)
    return Task(model=flat_model, data=data, loss=loss, seed=0, **how)


def measured(task):
    evaluator = metrics.Evaluator([task])
    return dict(zip(evaluator.names, evaluator(task.model.initial()[None])[0].tolist(), strict=True))


def test_accuracy_of_sequences_leaves_out_padding(monkeypatch):
    """The last sequence is all padding, so that the one before is all that its client has."""
    outputs, targets = sequences()
    task = padded_task()
    right = outputs.argmax(1) == targets
    shares = [float(r[y != PADDING].double().mean()) for r, y in zip(right[:3], targets[:3], strict=True)]
    assert len(set(shares)) > 1
    found = measured(task)
    assert found["train_accuracy"] == pytest.approx((shares[0] + shares[1]) / 4 + shares[2] / 2, abs=1e-15)
    losses = [float(F.cross_entropy(o[None], t[None])) for o, t in zip(outputs[:3], targets[:3], strict=True)]
    assert found["train_loss"] == pytest.approx((losses[0] + losses[1]) / 4 + losses[2] / 2, abs=1e-14)
    monkeypatch.setattr(inference, "_SCORES_AT_ONCE", 60)  # two samples' scores
    assert inference.samples_at_once(task, task.model.initial()) == 2
    assert measured(task) == pytest.approx(found, abs=1e-14)


def test_classes_are_on_axis_1():
    targets = torch.zeros(2, 7, dtype=torch.int64)
    assert has_classes(torch.zeros(2, 5, 7), targets)
    assert not has_classes(torch.zeros(2, 7, 5), targets)
    assert not has_classes(torch.zeros(2, 5, 7), targets.double())
    assert not has_classes(torch.zeros(2, 1, 7), targets)


def test_engines_agree_on_padded_sequences():
    task = padded_task()
    y = task.model.initial()
    together = Batched(task, Chunk.of(task, torch.arange(2)), 0)
    alone = [Loop(task, Chunk.of(task, torch.tensor([i])), 0) for i in range(2)]
    assert torch.allclose(together.full(y), torch.stack([grad.full(y) for grad in alone]), rtol=0, atol=1e-14)
    assert torch.allclose(together.reported(), torch.cat([grad.reported() for grad in alone]), rtol=0, atol=1e-14)
    assert not together.full(y).view(2, 4, -1)[:, 3].any()  # a sample that is all padding teaches nothing
