"""Aggregation rules on given rows: values, invariances, breakdown, parameters."""

import numpy as np
import pytest
import torch

from fedmos import aggregation
from fedmos.aggregation import columns
from helpers.robust import RULES, oracle

ROBUST = [rule for rule in RULES if not isinstance(rule, aggregation.Mean | aggregation.ClippedMean)]


def rows_of(S, D, seed=0, dtype=torch.float64):
    return torch.randn(S, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def weights_of(S, seed=0, dtype=torch.float64):
    w = torch.rand(S, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 0.1
    return w / w.sum()


@pytest.mark.parametrize("S", [5, 6, 11])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_values(rule, S):
    tolerance = 1e-4 if isinstance(rule, aggregation.GeometricMedian) else 1e-12  # a fixed number of iterations
    for weights in (torch.full((S,), 1 / S, dtype=torch.float64), weights_of(S), 3 * weights_of(S, 1)):
        rows = rows_of(S, 8, seed=S)
        before = rows.clone()
        np.testing.assert_allclose(
            rule.aggregate(rows, weights), oracle(rule, rows, weights), rtol=tolerance, atol=tolerance
        )
        assert torch.equal(rows, before)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_single_precision(rule):
    rows, weights = rows_of(7, 33, dtype=torch.float32), weights_of(7, dtype=torch.float32)
    got = rule.aggregate(rows, weights)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got, oracle(rule, rows, weights), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("S", [4, 5, 12, 13])
def test_equal_weights_give_the_median_of_numpy(S):
    rows = rows_of(S, 9, dtype=torch.float32)
    got = aggregation.Median().aggregate(rows, torch.full((S,), 1 / S))
    np.testing.assert_allclose(got, np.median(rows, axis=0), rtol=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_order_of_clients_does_not_matter(rule):
    rows, weights = rows_of(7, 6), weights_of(7)
    rows[:, 2:4] = rows[:, 2:4].round()  # coordinates with equal values, as codecs give
    order = torch.tensor([3, 0, 6, 5, 1, 4, 2])
    a, b = rule.aggregate(rows, weights), rule.aggregate(rows[order], weights[order])
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equal_rows_are_their_own_mean(rule):
    row = torch.tensor([0.01, -0.02, 0.0], dtype=torch.float64)
    torch.testing.assert_close(rule.aggregate(row.expand(6, 3), weights_of(6)), row, rtol=1e-12, atol=1e-12)
    zeros = torch.zeros(6, 3)
    assert torch.equal(rule.aggregate(zeros, torch.full((6,), 1 / 6)), zeros[0])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.scale_free], ids=str)
def test_rules_commute_with_a_change_of_units(rule):
    rows, weights = rows_of(7, 6), weights_of(7)
    for c in (1e-9, 1e9):
        torch.testing.assert_close(
            rule.aggregate(c * rows, weights), c * rule.aggregate(rows, weights), rtol=1e-7, atol=0
        )


@pytest.mark.parametrize("size", [1e3, 1e8, 1e15])
@pytest.mark.parametrize("rule", ROBUST, ids=str)
def test_one_arbitrary_row_of_five_cannot_move_the_result_far(rule, size):
    """Coordinate-wise rules and Krum stay within the range of the others; the geometric median within a few radii."""
    honest = rows_of(4, 10, seed=3)
    radius = float(torch.linalg.vector_norm(honest - honest.mean(0), dim=1).max())
    for direction in (torch.ones(10, dtype=torch.float64), -honest[0], rows_of(1, 10, seed=4)[0]):
        rows = torch.cat([honest, size * direction[None]])
        moved = rule.aggregate(rows, torch.full((5,), 0.2, dtype=torch.float64)) - honest.mean(0)
        assert float(torch.linalg.vector_norm(moved)) < 3 * radius
    plain = aggregation.Mean().aggregate(rows, torch.full((5,), 0.2, dtype=torch.float64)) - honest.mean(0)
    assert float(torch.linalg.vector_norm(plain)) > 10 * radius


def test_only_long_rows_are_clipped():
    rows, weights = rows_of(7, 8), weights_of(7)
    rule = aggregation.ClippedMean(float(torch.linalg.vector_norm(rows, dim=1).median()))
    np.testing.assert_allclose(rule.aggregate(rows, weights), oracle(rule, rows, weights), rtol=1e-12)
    loose = aggregation.ClippedMean(1e9)
    torch.testing.assert_close(loose.aggregate(rows, weights), weights @ rows, rtol=1e-12, atol=0)


def test_a_clipped_mean_moves_by_the_bound_at_most():
    honest, weights = rows_of(4, 10), torch.full((5,), 0.2, dtype=torch.float64)
    rule = aggregation.ClippedMean(0.5)
    far, near = (
        rule.aggregate(torch.cat([honest, v * torch.ones(1, 10, dtype=torch.float64)]), weights) for v in (1e9, 0)
    )
    assert float(torch.linalg.vector_norm(far - near)) == pytest.approx(0.2 * 0.5)


def test_rows_are_processed_in_parts(monkeypatch):
    rows, weights = rows_of(7, 50), weights_of(7)
    whole = [rule.aggregate(rows, weights) for rule in RULES]
    monkeypatch.setattr(columns, "_ENTRIES", 40)
    for rule, wanted in zip(RULES, whole, strict=True):
        torch.testing.assert_close(rule.aggregate(rows, weights), wanted, rtol=1e-10, atol=1e-12)


def test_clients_without_weight_do_not_count_in_means():
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0], [100.0]])
    weights = torch.tensor([0.5, 0.25, 0.25, 0.0, 0.0])
    assert aggregation.Median().aggregate(rows, weights) == 1.5
    assert aggregation.TrimmedMean(0.2).aggregate(rows, weights) == 2.5
    only_ends = torch.tensor([0.5, 0.0, 0.0, 0.0, 0.5])
    assert aggregation.TrimmedMean(0.2).aggregate(rows, only_ends) == 3.0  # all that are left have no weight


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: aggregation.TrimmedMean(0.5), r"TrimmedMean: 'fraction' must be in \[0, 0.5\), got 0.5"),
        (lambda: aggregation.TrimmedMean(-0.1), r"TrimmedMean: 'fraction' must be in \[0, 0.5\), got -0.1"),
        (lambda: aggregation.Krum(-1), "Krum: 'faulty' must be an integer ≥ 0, got -1"),
        (lambda: aggregation.Krum(1, keep=0), "Krum: 'keep' must be an integer ≥ 1, got 0"),
        (lambda: aggregation.ClippedMean(0), "ClippedMean: 'bound' must be > 0, got 0"),
        (lambda: aggregation.GeometricMedian(iterations=0), "GeometricMedian: 'iterations' must be an integer ≥ 1"),
        (lambda: aggregation.GeometricMedian(smoothing=0), "GeometricMedian: 'smoothing' must be > 0, got 0"),
    ],
)
def test_parameters_that_cannot_work_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_krum_refuses_rows_that_are_too_few():
    with pytest.raises(ValueError, match=r"Krum\(faulty=2, keep=1\) needs at least 7 clients in a round, got 6"):
        aggregation.Krum(2).aggregate(rows_of(6, 2), weights_of(6))
    assert aggregation.Krum(2, keep=9).min_clients == 11
