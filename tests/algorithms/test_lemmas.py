"""What FedMoS proves about chance: local momenta are unbiased (Lemma 8), and so is selection (Theorem 2, eqs. 22-28).

Where all outcomes can be listed, expectations are exact sums over them; elsewhere they are means over many
draws of a fixed seed, held against their standard error.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmos as fm
from helpers.problems import Quadratic, quadratic

LR, MU = 0.1, 0.05


# ------------------------------------------------------------------------------- Lemma 8: E[d] = ∇f_i(y)


class EveryBatch:
    """A client's gradients along many sequences of batches at once, one sequence per row."""

    def __init__(self, problem: Quadratic, batches: np.ndarray) -> None:
        """`batches`: (sequences, draws, B) samples of client 0; draw 0 is that of `batch`, draw k that of step k."""
        self.problem, self.batches, self.k = problem, batches, 0

    def on(self, y: torch.Tensor, draw: int) -> torch.Tensor:
        rows = zip(y.numpy(), self.batches[:, draw], strict=True)
        return torch.from_numpy(np.stack([self.problem.gradient(0, w, b) for w, b in rows]))

    def __call__(self, y: torch.Tensor) -> torch.Tensor:
        return self.on(y, self.k)

    def full(self, y: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.stack([self.problem.gradient(0, w) for w in y.numpy()]))

    def batch(self, y: torch.Tensor, b: int) -> torch.Tensor:
        assert b == self.batches.shape[2]
        return self.on(y, 0)


def errors(algorithm: fm.FedMoS, problem: Quadratic, batches: np.ndarray) -> list[np.ndarray]:
    """d_k − ∇f_i(y_k) for each step k (list) and each sequence of batches (row)."""
    x = torch.tensor(problem.x0)
    column = torch.ones(len(batches), 1, dtype=x.dtype)
    steps = batches.shape[1]
    c = fm.ClientContext(
        t=0,
        lr=torch.tensor(LR, dtype=x.dtype),
        N=1,
        S=1,
        W=1.0,
        x=x,
        msg={},
        own={},
        K=steps * column,
        p=column,
        last=-column,
    )
    grad = EveryBatch(problem, batches)
    y = x.expand(len(batches), -1)
    s, found = algorithm.begin(y, c, grad), []
    for grad.k in range(steps):
        y_next, s = algorithm.step(y, s, c, grad, grad.k)
        d = (y - y_next - algorithm.mu * (y - x)) / LR  # line 12, solved for d
        found.append((d - grad.full(y)).numpy())
        y = y_next
    return found


ONE_CLIENT = quadratic(sizes=(4,), importance=(1,), size=3)
PAIRS = list(itertools.combinations(range(4), 2))
SEQUENCES = np.array(list(itertools.product(PAIRS, repeat=4)))
"""All 6⁴ ways to draw two of four samples four times: the first batch, and those of steps 1, 2 and 3."""


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("first_batch", ["full", 2])
def test_local_momentum_is_unbiased(a, first_batch):
    """E[d_k] = E[∇f_i(y_k)] at every step, over all sequences of batches, though single momenta are off."""
    found = errors(fm.FedMoS(lr=LR, a=a, mu=MU, first_batch=first_batch), ONE_CLIENT, SEQUENCES)
    for k, error in enumerate(found):
        np.testing.assert_allclose(error.mean(0), 0, atol=1e-12)
        assert (np.abs(error).max() > 0.01) == (k > 0 or first_batch == 2)


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_local_momentum_forgets_its_error(a):
    """The induction step: given the batches up to k, E[d_{k+1} − ∇f_i(y_{k+1})] = (1−a) (d_k − ∇f_i(y_k))."""
    found = errors(fm.FedMoS(lr=LR, a=a, mu=MU, first_batch=2), ONE_CLIENT, SEQUENCES)
    for k in range(3):
        branches = len(PAIRS) ** (3 - k)  # rows that share their batches up to step k lie next to each other
        before = found[k].reshape(-1, branches, 3)
        after = found[k + 1].reshape(-1, branches, 3)
        np.testing.assert_allclose(after.mean(1), (1 - a) * before[:, 0], rtol=0, atol=1e-12)


def test_the_released_momentum_is_biased():
    """d_k = g_k + (1−a)^k g_0 overshoots by (1−a)^k ∇f_i(x) on average: the test above can fail."""
    a, x = 0.3, ONE_CLIENT.x0
    found = errors(fm.FedMoS(lr=LR, a=a, mu=MU, variant="released"), ONE_CLIENT, SEQUENCES)
    for k in range(1, 4):
        np.testing.assert_allclose(found[k].mean(0), (1 - a) ** k * ONE_CLIENT.gradient(0, x), rtol=0, atol=1e-12)


def test_local_momentum_is_unbiased_in_a_run():
    """Thousands of clients with the same six samples are as many draws of the engine's own batches."""
    clients, K, seen = 4000, 3, []
    one = quadratic(sizes=(6,), importance=(1,), size=3)
    problem = Quadratic(one.samples * clients, np.ones(clients), one.x0)

    class Recording(fm.FedMoS):
        def step(self, y, s, c, grad, k):
            y_next, s = super().step(y, s, c, grad, k)
            seen.append(((y - y_next - self.mu * (y - c.x)) / c.lr - grad.full(y)).numpy())
            return y_next, s

    algorithm = Recording(lr=LR, a=0.3, mu=MU, first_batch=2)
    work = {"rounds": 1, "local_steps": K, "batch_size": 2, "loss": problem.loss}
    run = {"device": "cpu", "dtype": torch.float64, "engine": "batched"}
    fm.run(problem.model(), problem.data(), algorithm, fm.Full(), **work, **run)
    assert len(seen) == K
    for error in seen:
        z = error.mean(0) / (error.std(0) / np.sqrt(clients))
        assert error.std(0).min() > 0.01
        assert np.abs(z).max() < 4


# ---------------------------------------------------------------------- Theorem 2: E[w_i] = p_i, and var(w_i)

P = torch.tensor([0.02, 0.4, 0.1, 0.1, 0.0, 0.15, 0.08, 0.05, 0.1], dtype=torch.float64)
"""Unequal, with m p_i > 1 for m = 3, ties, and a zero."""
N, M, ROUNDS = len(P), 3, 4000


@cache
def drawn_weights(selector: fm.Selector) -> np.ndarray:
    """(ROUNDS, N): each client's summed weight in each round."""
    view = fm.View(seed=1, round=0, p=P, n=torch.ones(N, dtype=torch.int64))
    weights = torch.zeros(ROUNDS, N, dtype=torch.float64)
    for view.round in range(ROUNDS):
        ids, w = selector.select(view)
        weights[view.round].index_add_(0, ids, w)
    return weights.numpy()


def acs_variance(p: np.ndarray, m: int, bins: np.ndarray) -> np.ndarray:
    """p_i/m − Σ_j p_ij²/m², from eq. (25)."""
    return p / m - (bins**2).sum(1) / m**2


def md_variance(p: np.ndarray, m: int) -> np.ndarray:
    """p_i/m − p_i²/m."""
    return p / m - p**2 / m


def uniform_variance(p: np.ndarray, m: int) -> np.ndarray:
    """(N/m) p_i² − p_i², from eq. (28)."""
    return (len(p) / m - 1) * p**2


SELECTORS = {
    "Uniform": (fm.Uniform(m=M, weights="unbiased"), uniform_variance(P.numpy(), M)),
    "MD": (fm.MD(m=M), md_variance(P.numpy(), M)),
    "ACS": (fm.ACS(m=M), acs_variance(P.numpy(), M, fm.ACS(m=M).bins(P).numpy())),
}


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.extended
def test_selection_is_unbiased(name):
    """E[w_i] = p_i, with the variance that the scheme's formula states."""
    selector, variance = SELECTORS[name]
    w, p = drawn_weights(selector), P.numpy()
    standard_error = np.sqrt(variance / ROUNDS)
    assert (np.abs(w.mean(0) - p) <= 4 * standard_error + 1e-12).all()
    squares = (w - p) ** 2
    assert (np.abs(squares.mean(0) - variance) <= 4 * squares.std(0) / np.sqrt(ROUNDS) + 1e-12).all()
    assert (w[:, p == 0] == 0).all()


def test_acs_varies_less_than_md():
    """For every client by the formulas, and in total as measured: the variances add up to less."""
    (acs, acs_formula), (md, md_formula) = SELECTORS["ACS"], SELECTORS["MD"]
    assert (acs_formula <= md_formula).all()
    assert acs_formula.sum() < 0.8 * md_formula.sum()
    assert drawn_weights(acs).var(0).sum() < 0.8 * drawn_weights(md).var(0).sum()


@pytest.mark.parametrize("weights", ["cohort", "mean"])
def test_biased_weights_are_found_out(weights):
    """The same test refuses weights that are not unbiased."""
    w = drawn_weights(fm.Uniform(m=M, weights=weights))
    assert (np.abs(w.mean(0) - P.numpy()) > 10 * w.std(0) / np.sqrt(ROUNDS)).any()


def algorithm_2(p: list[Fraction], M: int) -> list[list[Fraction]]:
    """The loop of FedMoS's Algorithm 2, line by line and without rounding; p_{i,m} in the clients' own order."""
    order = sorted(range(len(p)), key=lambda i: p[i], reverse=True)  # line 1; ties keep their order
    P = [Fraction(0)] * len(p)  # 2
    p_im = [[Fraction(0)] * M for _ in p]
    for m in range(M):  # 3
        total = Fraction(0)  # 4
        for i in order:  # 5
            if P[i] < M * p[i]:  # 6
                p_im[i][m] = min(M * p[i] - P[i], Fraction(1))  # 7
                total_before, total = total, total + p_im[i][m]  # 8
                if total <= 1:  # 9
                    P[i] += p_im[i][m]  # 10
                else:
                    p_im[i][m] = 1 - total_before  # 11, 12
                    P[i] += p_im[i][m]
                    break
    return p_im


counts = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 10**6)), min_size=1, max_size=25).filter(any)


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(counts=counts, data=st.data())
def test_bins_are_those_of_algorithm_2(counts, data):
    check_bins(counts, data.draw(st.integers(1, len(counts)), label="m"))


@pytest.mark.parametrize(
    ("counts", "m"),
    [([1], 1), ([1, 1, 1], 3), ([10**6, 1, 1, 0], 4), ([0, 3, 3, 0, 3], 2), ([5, 0, 0], 3), ([1] * 7, 3)],
)
def test_bins_of_edge_cases(counts, m):
    """One client, a bin each, one client in nearly all bins, zeros, ties."""
    check_bins(counts, m)


def check_bins(counts: list[int], m: int) -> None:
    """Σ_j p_ij = m p_i (22), Σ_i p_ij = 1 (26), every bin as in Algorithm 2, and no client varies more than with MD."""
    exact = [Fraction(n, sum(counts)) for n in counts]
    p = np.array([float(f) for f in exact])
    bins = fm.ACS(m=m).bins(torch.tensor(p)).numpy()
    assert bins.shape == (len(p), m)
    assert (bins >= 0).all()
    np.testing.assert_allclose(bins.sum(1), m * p, rtol=0, atol=1e-12)
    np.testing.assert_allclose(bins.sum(0), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(bins, np.array(algorithm_2(exact, m), dtype=float), rtol=0, atol=1e-12)
    assert (acs_variance(p, m, bins) <= md_variance(p, m) + 1e-14).all()
