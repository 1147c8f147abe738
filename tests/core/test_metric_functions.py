"""Metrics against scikit-learn, and the concordance index against its definition."""

import math

import pytest
import torch
from sklearn import metrics as reference

import fedmos as fm

GENERATOR = torch.Generator().manual_seed(0)
N = 60
SCORES = torch.randn(N, 4, generator=GENERATOR).mul(4).round() / 4  # with ties, exact in float32
CLASSES = torch.randint(4, (N,), generator=GENERATOR)
LABELS = (torch.rand(N, 4, generator=GENERATOR) < 0.3).float()
REAL = torch.randn(N, 4, generator=GENERATOR)


def test_regression():
    assert fm.metrics.RMSE()(SCORES, REAL) == pytest.approx(reference.mean_squared_error(REAL, SCORES) ** 0.5)
    assert fm.metrics.MAE()(SCORES, REAL) == pytest.approx(reference.mean_absolute_error(REAL, SCORES))
    assert fm.metrics.R2()(SCORES, REAL) == pytest.approx(reference.r2_score(REAL, SCORES))
    assert fm.metrics.RMSE()(SCORES[:, :1], REAL[:, 0]) == pytest.approx(
        reference.mean_squared_error(REAL[:, 0], SCORES[:, 0]) ** 0.5
    )


def test_classes():
    predicted = SCORES.argmax(1)
    assert fm.metrics.MacroF1()(SCORES, CLASSES) == pytest.approx(
        reference.f1_score(CLASSES, predicted, average="macro")
    )
    assert fm.metrics.BalancedAccuracy()(SCORES, CLASSES) == pytest.approx(
        reference.balanced_accuracy_score(CLASSES, predicted)
    )
    for outputs in (SCORES, SCORES.double().softmax(1), SCORES.double().log_softmax(1)):
        probabilities = SCORES.double().softmax(1)
        assert fm.metrics.AUC()(outputs, CLASSES) == pytest.approx(
            reference.roc_auc_score(CLASSES, probabilities, multi_class="ovr", average="macro")
        )
    two = CLASSES % 2
    assert fm.metrics.AUC()(SCORES[:, :2], two) == pytest.approx(
        reference.roc_auc_score(two, SCORES[:, 1] - SCORES[:, 0])
    )


def test_ignored_targets_and_sequences():
    ignored = CLASSES.where(torch.arange(N) % 4 > 0, -100)
    kept = ignored >= 0
    for metric in (fm.metrics.MacroF1(), fm.metrics.AUC(), fm.metrics.BalancedAccuracy()):
        assert metric(SCORES, ignored) == pytest.approx(metric(SCORES[kept], CLASSES[kept]))
        sequences = SCORES.view(20, 3, 4).movedim(-1, 1)
        assert metric(sequences, ignored.view(20, 3)) == pytest.approx(metric(SCORES, ignored))


def test_labels():
    assert fm.metrics.MacroF1()(SCORES, LABELS) == pytest.approx(
        reference.f1_score(LABELS, SCORES > 0, average="macro")
    )
    assert fm.metrics.AUC()(SCORES, LABELS) == pytest.approx(reference.roc_auc_score(LABELS, SCORES, average="macro"))
    one = (SCORES[:, :1], LABELS[:, :1])
    assert fm.metrics.AUC()(*one) == pytest.approx(reference.roc_auc_score(LABELS[:, 0], SCORES[:, 0]))
    assert fm.metrics.MacroF1()(*one) == pytest.approx(
        reference.f1_score(LABELS[:, 0], SCORES[:, 0] > 0, average="macro")
    )
    assert fm.metrics.BalancedAccuracy()(*one) == pytest.approx(
        reference.balanced_accuracy_score(LABELS[:, 0], SCORES[:, 0] > 0)
    )


def test_one_class_only_has_no_area():
    assert fm.metrics.AUC()(SCORES[:, 0], torch.ones(N)) != fm.metrics.AUC()(SCORES[:, 0], torch.ones(N))  # NaN


def test_concordance_against_its_definition():
    times, events = torch.rand(N, generator=GENERATOR).round(decimals=1), CLASSES > 1
    scores, concordant, comparable = SCORES[:, 0], 0.0, 0
    for i in range(N):
        for j in range(N):
            later = times[j] > times[i] or (times[j] == times[i] and not events[j])
            if events[i] and i != j and later:
                comparable += 1
                concordant += 1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0
    targets = torch.stack([times, events.float()], 1)
    assert fm.metrics.CIndex()(scores[:, None], targets) == pytest.approx(concordant / comparable)


def test_what_is_not_defined_is_nan():
    """R² of constant targets, and ranks of outputs that are no numbers."""
    assert math.isnan(fm.metrics.R2()(torch.tensor([1.0, 2.0]), torch.ones(2)))
    broken = SCORES.index_fill(0, torch.tensor([3]), torch.nan)
    assert math.isnan(fm.metrics.AUC()(broken, CLASSES))
    assert math.isnan(fm.metrics.AUC()(broken[:, 0], LABELS[:, 0]))
    assert math.isnan(fm.metrics.CIndex()(torch.tensor([torch.nan, 1.0]), torch.tensor([[1.0, 1.0], [2.0, 0.0]])))
