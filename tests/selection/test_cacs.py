"""CACS: clustered selection."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.problems import Quadratic
from helpers.selection import LR, WIRES, greedy_bins, run, tensor, view_of


def three_camps() -> tuple[Quadratic, list[set[int]]]:
    """Nine clients whose minima lie far out in three directions, two of them opposite, numbered across camps."""
    rng = np.random.default_rng(3)
    centres = [np.array(c, dtype=float) for c in ([9, 0, 0], [-9, 0, 0], [0, 9, 0])]
    samples = []
    for i in range(9):
        a = np.ones((4 + i, 3))
        samples.append((a, a * (centres[i % 3] + rng.normal(0, 0.5, (4 + i, 3)))))
    return Quadratic(samples, np.arange(1, 10), np.zeros(3)), [{0, 3, 6}, {1, 4, 7}, {2, 5, 8}]


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", ["FedAvg", "Scaffold"])
def test_cacs_warms_up_then_asks_everyone_for_gradients(engine, name):
    """Everyone with weight p_i for `warmup` rounds; then N vectors up, x down to all N; from then on like ACS."""
    (problem, _), warmup, D, N = three_camps(), 2, 3, 9
    algorithm, down, up = WIRES[name]
    selector = fm.CACS(m=3, warmup=warmup)
    history = run(problem, selector, algorithm, rounds=5, engine=engine, batch_size=2).history
    for t, record in enumerate(history):
        S = len(record.cohort)
        if t < warmup:
            assert record.cohort == list(range(N))
            assert record.weights == pytest.approx(problem.p)
        else:
            assert S <= 3
            assert [round(3 * w, 9) in (1, 2, 3) for w in record.weights] == [True] * S
            assert sum(record.weights) == pytest.approx(1)
        asked = N if t == warmup else 0
        assert record.bytes_down == (down * S + (asked - S if asked else 0)) * D * 8
        assert record.bytes_up == (up * S + asked) * D * 8
        assert record.probed == (sum(problem.n) if asked else 0)


def test_the_warm_up_is_the_run_s_own_algorithm_and_is_kept():
    problem, _ = three_camps()
    warm = run(problem, fm.CACS(m=3, warmup=3), fm.FedMoS(lr=LR), rounds=3)
    full = run(problem, fm.Full(), fm.FedMoS(lr=LR), rounds=3)  # at once; the warm-up in chunks of a cohort
    assert torch.allclose(warm.params, full.params, rtol=0, atol=1e-14)


@pytest.mark.parametrize("warmup", [0, 2])
def test_cacs_finds_clients_that_pull_the_same_way(warmup):
    """Three camps of gradients become three clusters; with two, the opposite camps stay apart."""
    problem, camps = three_camps()

    def found(clusters: int | None) -> list[set[int]]:
        selector = fm.CACS(m=3, clusters=clusters, warmup=warmup)
        labels = run(problem, selector, rounds=warmup + 1).selection["state.cluster"].tolist()
        return [{i for i in range(9) if labels[i] == c} for c in sorted(set(labels))]

    assert sorted(map(sorted, found(3))) == sorted(map(sorted, camps))
    assert sorted(map(sorted, found(None))) == sorted(map(sorted, camps))
    assert len(found(1)) == 1
    assert sorted(map(len, found(9))) == [1] * 9
    assert not any({0, 3, 6, 1, 4, 7} <= cluster for cluster in found(2))


def test_cacs_clusters_by_angle_not_by_length():
    """Gradients along one line in each of two directions, of lengths 1 to 1000."""
    g = torch.tensor([[1.0, 0], [0, 1], [1000, 1], [1, 1000], [30, -1], [-1, 30]], dtype=torch.float64)
    view = view_of([1] * 6, ask_gradients=lambda ids: g[ids])
    fm.CACS(m=2, warmup=0).select(view)
    label = view.state["cluster"].tolist()
    assert label[0] == label[2] == label[4] != label[1]
    assert label[1] == label[3] == label[5]


@pytest.mark.parametrize("case", range(12))
def test_cacs_orders_by_cluster_then_importance(case):
    """Clusters by Σp, clients inside by p, both descending; then the greedy bins, whose sums are m p_i and one."""
    rng = np.random.default_rng(case)
    N = int(rng.integers(1, 15))
    m = int(rng.integers(1, N + 1))
    counts = rng.integers(0, [4, 1000][case % 2], N) + (np.arange(N) == 0)
    cluster = rng.integers(0, rng.integers(1, N + 1), N)
    exact = [Fraction(int(c), int(counts.sum())) for c in counts]
    mass = {c: sum(q for q, k in zip(exact, cluster, strict=True) if k == c) for c in set(cluster.tolist())}
    order = sorted(range(N), key=lambda i: (-mass[cluster[i]], cluster[i], -exact[i], i))
    p = tensor([float(q) for q in exact])
    bins = fm.CACS(m=m).bins(p, torch.from_numpy(cluster)).numpy()
    np.testing.assert_allclose(bins.sum(0), 1, atol=1e-12)
    np.testing.assert_allclose(bins.sum(1), m * p.numpy(), atol=1e-12)
    masses = sorted(mass.values())
    if all(b - a > Fraction(1, 10**9) for a, b in itertools.pairwise(masses)):  # else which comes first is open
        np.testing.assert_allclose(bins, np.array(greedy_bins(order, exact, m), dtype=float), atol=1e-12)
