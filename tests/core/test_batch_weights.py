"""The weighted sum over samples that the vectorised engine computes is PyTorch's loss of the batch, for any reduction."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm
from fedmos.core.losses import Loss

B, C, T = 12, 4, 5
GENERATOR = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(B, C, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.randint(C, (B,), generator=GENERATOR)
IGNORED = CLASSES.where(torch.arange(B) % 3 > 0, -100)
SEQUENCES = torch.randn(B, C, T, generator=GENERATOR, dtype=torch.float64)
TOKENS = torch.randint(C, (B, T), generator=GENERATOR)
TOKENS[:, -2:] = TOKENS[:, -2:].where(torch.arange(B)[:, None] % 2 > 0, -100)
REAL = torch.randn(B, C, generator=GENERATOR, dtype=torch.float64)
BINARY = (REAL > 0).double()
PROBABILITIES = REAL.softmax(1)
WEIGHT = torch.tensor([0.1, 1.0, 3.0, 0.5], dtype=torch.float64)

CASES = {
    "weight": (nn.CrossEntropyLoss(weight=WEIGHT), OUTPUTS, CLASSES),
    "weight, float32 buffer": (nn.CrossEntropyLoss(weight=WEIGHT.float()), OUTPUTS, CLASSES),
    "ignored": (nn.CrossEntropyLoss(), OUTPUTS, IGNORED),
    "another ignore_index": (nn.CrossEntropyLoss(ignore_index=2), OUTPUTS, CLASSES),
    "weight and ignored": (nn.CrossEntropyLoss(weight=WEIGHT), OUTPUTS, IGNORED),
    "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.2), OUTPUTS, CLASSES),
    "smoothing, weight and ignored": (nn.CrossEntropyLoss(label_smoothing=0.2, weight=WEIGHT), OUTPUTS, IGNORED),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), OUTPUTS, CLASSES),
    "sum, weight and ignored": (nn.CrossEntropyLoss(reduction="sum", weight=WEIGHT), OUTPUTS, IGNORED),
    "probabilities": (nn.CrossEntropyLoss(weight=WEIGHT), OUTPUTS, PROBABILITIES),
    "sequences": (nn.CrossEntropyLoss(), SEQUENCES, TOKENS.clamp(min=0)),
    "padded sequences": (nn.CrossEntropyLoss(), SEQUENCES, TOKENS),
    "weighted padded sequences": (nn.CrossEntropyLoss(weight=WEIGHT), SEQUENCES, TOKENS),
    "nll": (nn.NLLLoss(weight=WEIGHT), OUTPUTS.log_softmax(1), IGNORED),
    "functional": (partial(F.cross_entropy, weight=WEIGHT), OUTPUTS, IGNORED),
    "functional sum": (partial(F.cross_entropy, reduction="sum"), OUTPUTS, CLASSES),
    "plain functional, ignored": (F.cross_entropy, OUTPUTS, IGNORED),
    "named, ignored": ("cross_entropy", OUTPUTS, IGNORED),
    "pos_weight": (nn.BCEWithLogitsLoss(pos_weight=WEIGHT), OUTPUTS, BINARY),
    "bce weight": (nn.BCEWithLogitsLoss(weight=WEIGHT), OUTPUTS, BINARY),
    "bce sum": (nn.BCEWithLogitsLoss(reduction="sum"), OUTPUTS, BINARY),
    "mse": (nn.MSELoss(), OUTPUTS, REAL),
    "mse sum": (nn.MSELoss(reduction="sum"), OUTPUTS, REAL),
    "huber": (nn.HuberLoss(delta=0.3), OUTPUTS, REAL),
    "batchmean": (nn.KLDivLoss(reduction="batchmean"), OUTPUTS.log_softmax(1), PROBABILITIES),
    "margin": (nn.MultiMarginLoss(weight=WEIGHT), OUTPUTS, CLASSES),
    "soft margin": (nn.MultiLabelSoftMarginLoss(weight=WEIGHT), OUTPUTS, BINARY),
}


def value_and_gradient(f, outputs):
    leaf = outputs.clone().requires_grad_()
    value = f(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("case", CASES)
def test_the_weighted_sum_is_the_loss_of_the_batch(case, padding):
    function, outputs, targets = CASES[case]
    loss = Loss(function).to(torch.device("cpu"), torch.float64, targets)
    whole = (lambda o: F.cross_entropy(o, targets)) if function == "cross_entropy" else lambda o: loss.mean(o, targets)
    expected = value_and_gradient(whole, outputs)
    padded = torch.cat([targets, targets[:1].expand(padding, *targets.shape[1:])])
    counted = torch.arange(B + padding) < B

    def weighted(leaf):
        rows = torch.cat([leaf, leaf[:1].expand(padding, *leaf.shape[1:])])
        weight = counted.double() / B if loss.uniform else loss.weights(padded, counted, torch.float64)
        return loss.weighted(rows, padded, weight)

    for found, right in zip(value_and_gradient(weighted, outputs), expected, strict=True):
        assert torch.allclose(found, right, rtol=1e-7 if "float32" in case else 1e-12, atol=1e-12)


def test_the_weighted_mean_differs_from_the_mean_where_weights_differ():
    """Guards the cases above: the weights of classes are not dropped."""
    function, outputs, targets = CASES["weight"]
    assert abs(float(function(outputs, targets)) - float(F.cross_entropy(outputs, targets))) > 0.05


def test_a_batch_whose_targets_are_all_ignored_has_no_loss():
    loss = Loss(nn.CrossEntropyLoss()).to(torch.device("cpu"), torch.float64, torch.full((3,), -100))
    targets, counted = torch.full((3,), -100), torch.ones(3, dtype=torch.bool)
    assert loss.weights(targets, counted, torch.float64).tolist() == [0, 0, 0]


def test_a_loss_without_reduction_is_refused():
    with pytest.raises(ValueError, match="reduction='none'"):
        Loss(nn.CrossEntropyLoss(reduction="none"))


def test_the_number_of_arguments_of_a_batch_loss():
    with pytest.raises(ValueError, match="got 1 values"):
        fm.losses.Batch(lambda outputs: outputs)
    with pytest.raises(ValueError, match=r"Batch: 'f' must be a function of .outputs, targets, mask., got 3"):
        fm.losses.Batch(3)
    assert not fm.losses.Batch(lambda outputs, targets: outputs.sum()).masked
    assert fm.losses.Batch(lambda outputs, targets, mask: outputs.sum()).masked


def cox_by_hand(scores, times, events):
    total, count = 0.0, 0
    for i in range(len(scores)):
        if events[i]:
            risk = [scores[j] for j in range(len(scores)) if times[j] >= times[i]]
            total += torch.logsumexp(torch.stack(risk), 0) - scores[i]
            count += 1
    return total / count


def test_cox_against_its_definition():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(9, generator=generator, dtype=torch.float64)
    times = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0], dtype=torch.float64)
    events = torch.tensor([1, 1, 0, 0, 1, 1, 0, 1, 0])
    targets = torch.stack([times, events.double()], 1)
    cox, mask = fm.losses.Cox(), torch.ones(9, dtype=torch.bool)
    over_samples = fm.losses.Cox(over="samples")
    assert torch.allclose(over_samples(scores, targets, mask), cox(scores, targets, mask) * events.sum() / 9)
    few = torch.arange(9) < 6
    assert torch.allclose(over_samples(scores, targets, few), cox(scores, targets, few) * events[:6].sum() / 6)
    assert torch.allclose(cox(scores[:, None], targets, mask), cox_by_hand(scores, times, events))
    some = torch.arange(9) < 6  # padding changes nothing
    expected = cox_by_hand(scores[:6], times[:6], events[:6])
    assert torch.allclose(cox(scores, targets, some), expected)
    value, gradient = value_and_gradient(lambda o: cox(o, targets, some), scores)
    assert gradient.isfinite().all()
    assert gradient[6:].eq(0).all()
    nothing = torch.stack([times, torch.zeros(9, dtype=torch.float64)], 1)
    value, gradient = value_and_gradient(lambda o: cox(o, nothing, mask), scores)
    assert float(value) == 0
    assert gradient.eq(0).all()


class Tagger(nn.Module):
    """A class for each position of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.embedding(x)).transpose(1, 2)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_sequences_without_a_label_do_not_count(engine):
    """Training and metrics are those of the other sequences alone."""
    rng = np.random.default_rng(0)

    def samples(n):
        y = rng.integers(5, size=(n, 6))
        y[:, 4:] = -100
        return rng.integers(10, size=(n, 6)), y

    (x, y), (x_test, y_test) = samples(6), samples(10)
    empty = np.full((3, 6), -100)
    more = (np.concatenate([x, x[:3]]), np.concatenate([y, empty]))
    more_test = (np.concatenate([x_test, x_test[:3]]), np.concatenate([y_test, empty]))
    torch.manual_seed(0)
    model = Tagger()

    def train(clients, test):
        data = fm.FederatedData.from_arrays([clients], test=test)
        how = {"rounds": 2, "local_steps": 2, "engine": engine, "dtype": torch.float64}
        return fm.run(model, data, fm.FedAvg(lr=0.5), fm.Full(), **how)

    result, expected = train(more, more_test), train((x, y), (x_test, y_test))
    assert torch.allclose(result.params, expected.params, rtol=0, atol=1e-12)
    for name in ("test_loss", "train_loss", "accuracy", "train_accuracy"):
        assert result.history[-1].value(name) == pytest.approx(expected.history[-1].value(name), abs=1e-12)
