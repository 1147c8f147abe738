"""Probes of clients for selection, and their cost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.problems import Quadratic, quadratic
from helpers.selection import LR, RARE, WIRES, K, run, surprise, tensor


def sample_losses(problem: Quadratic, i: int, w: np.ndarray) -> np.ndarray:
    a, b = problem.samples[i]
    return ((a * w - b) ** 2).sum(1) / 2


def replay(problem: Quadratic, result: fm.Result, mu: float = 0.0) -> Iterator[tuple]:
    """FedAvg with full batches once more, by hand: for each round its record, x, and what its cohort then reports."""
    x = problem.x0
    for record in result.history:
        reports, step = {}, np.zeros_like(x)
        for i, w in zip(record.cohort, record.weights, strict=True):
            y, losses = x, []
            for _ in range(K):
                losses.append(sample_losses(problem, i, y).mean())
                y = y - LR * problem.gradient(i, y) - mu * (y - x)
            at_x = sample_losses(problem, i, x)
            reports[i] = {"loss": np.mean(losses), "start_loss": at_x.mean(), "start_squared_loss": (at_x**2).mean()}
            step = step + w * (y - x)
        yield record, x, reports
        x = x + step
    np.testing.assert_allclose(result.params.numpy(), x, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Curious(fm.Selector):
    """Chooses two clients in turn; asks whom it is told to ask, and notes the answers; or has everything reported."""

    ask: tuple[int, ...] = ()
    what: str = "losses"
    notes: list = field(default_factory=list, compare=False, repr=False)

    @property
    def reports(self):
        return () if self.ask else ("loss", "start_loss", "start_squared_loss")

    def select(self, view):
        if self.ask:
            ids = torch.tensor(self.ask)
            answer = view.gradients(ids) if self.what == "gradients" else view.probe(ids, self.what == "batch")
            self.notes.append(answer.numpy())
        return torch.tensor([view.round % view.N, (view.round + 3) % view.N]), tensor([0.5, 0.5])


FULL_BATCH = [(fm.FedAvg(lr=LR), 0.0), (fm.FedMoS(lr=LR, mu=0.1, beta=0.0), 0.1)]
"""FedMoS takes two gradients in a step, and one before the first; with full batches its d is ∇f_i(y)."""


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(("algorithm", "mu"), FULL_BATCH, ids=["FedAvg", "FedMoS"])
def test_clients_report_what_the_specification_says(engine, algorithm, mu):
    """The mean over local steps of the loss at each one's first gradient, and the mean and mean squared loss at the
    model received; three numbers up."""
    problem = quadratic()
    result, latest = run(problem, Curious(), algorithm, rounds=9, engine=engine), {}
    for record, _, reports in replay(problem, result, mu):
        latest |= reports
        assert record.bytes_up == 2 * (5 + 3) * 8
        assert record.bytes_down == 2 * 5 * 8
    for name in Curious().reports:
        found = result.selection[f"reported.{name}"].numpy()
        np.testing.assert_allclose(found, [latest[i][name] for i in range(7)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(("algorithm", "mu"), FULL_BATCH, ids=["FedAvg", "FedMoS"])
def test_rpow_d_goes_by_the_reported_training_loss(engine, algorithm, mu):
    """With all as candidates: those never seen first, then the m whose last report is largest. A number up each."""
    problem, known, m = quadratic(), {}, 2
    result = run(problem, fm.PowerOfChoice(m=m, d=7, loss="reported"), algorithm, rounds=10, engine=engine)
    by_report = 0
    for record, _, reports in replay(problem, result, mu):
        unseen = set(range(7)) - set(known)
        assert len(set(record.cohort) & unseen) == min(m, len(unseen))
        ranked = sorted(known, key=known.get, reverse=True)
        assert set(record.cohort) - unseen == set(ranked[: m - min(m, len(unseen))])
        assert record.weights == [0.5, 0.5]
        by_report += not unseen
        assert record.bytes_down == m * 5 * 8
        assert record.bytes_up == m * (5 + 1) * 8
        assert record.probed == 0
        known |= {i: report["loss"] for i, report in reports.items()}
    assert by_report == 6


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_pow_d_goes_by_the_local_losses_at_x(engine):
    """With all as candidates, the cohort is the m clients whose f_i(x), computed independently, is largest."""
    problem = quadratic()
    result, cohorts = run(problem, fm.PowerOfChoice(m=3, d=7), rounds=6, engine=engine), set()
    for record, x, _ in replay(problem, result):
        f = [sample_losses(problem, i, x).mean() for i in range(7)]
        assert record.cohort == sorted(sorted(range(7), key=f.__getitem__, reverse=True)[:3])
        cohorts.add(tuple(record.cohort))
    assert len(cohorts) > 1


def test_a_probe_is_the_mean_local_loss_at_x():
    """Answers come in the order asked, at the model of the round; each costs its samples, x down and a number up."""
    problem, curious = quadratic(), Curious(ask=(5, 1, 3))
    for (record, x, _), answer in zip(replay(problem, run(problem, curious)), curious.notes, strict=True):
        np.testing.assert_allclose(answer, [sample_losses(problem, i, x).mean() for i in curious.ask], atol=1e-12)
        assert record.probed == sum(problem.n[i] for i in curious.ask)
        assert record.bytes_up == (2 * 5 + 3) * 8
        assert record.bytes_down == len({*record.cohort, *curious.ask}) * 5 * 8


def test_gradients_asked_are_those_at_x():
    problem, curious = quadratic(), Curious(ask=(5, 1, 3), what="gradients")
    for (record, x, _), answer in zip(replay(problem, run(problem, curious)), curious.notes, strict=True):
        np.testing.assert_allclose(answer, [problem.gradient(i, x) for i in curious.ask], atol=1e-12)
        assert record.probed == sum(problem.n[i] for i in curious.ask)
        assert record.bytes_up == (2 * 5 + 3 * 5) * 8


def test_a_batch_probe_is_the_loss_of_one_random_batch():
    """cpow-d: min(B, n) distinct samples, all subsets equally likely, drawn by client and round apart."""
    base, clients, B = quadratic(sizes=(5,), importance=(1,)), 600, 2
    problem = Quadratic(base.samples * clients, np.ones(clients), base.x0)
    curious = Curious(ask=tuple(range(clients)), what="batch")
    history = run(problem, curious, rounds=2, batch_size=B).history
    subsets = list(itertools.combinations(range(5), B))
    losses = sample_losses(base, 0, base.x0)
    means = np.array([losses[list(s)].mean() for s in subsets])
    distance = np.abs(curious.notes[0][:, None] - means)
    assert (distance.min(1) < 1e-12).all()
    seen = Counter(distance.argmin(1).tolist())
    assert surprise(seen, dict.fromkeys(range(len(subsets)), 1 / len(subsets))) > RARE
    again = np.abs(curious.notes[1][:, None] - curious.notes[1][None]) < 1e-12
    first = np.abs(curious.notes[0][:, None] - curious.notes[0][None]) < 1e-12
    assert (again != first).any()
    assert history[0].probed == clients * B


@pytest.mark.parametrize(("B", "probed"), [(4, 5 * 4 + 3 + 4), (None, 46), (100, 46)])
def test_batch_probes_count_their_samples(B, probed):
    """At most B of each client's 5, 9, 3, 12, 7, 4, 6 samples."""
    result = run(quadratic(), fm.PowerOfChoice(m=2, d=7, loss="batch"), batch_size=B, rounds=2)
    assert [r.probed for r in result.history] == [probed] * 2


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("loss", ["full", "batch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_power_of_choice_costs(name, loss, dtype):
    """x to d candidates and a number from each; to those chosen, only what else the algorithm sends."""
    algorithm, down, up = WIRES[name]
    m, d, D, n = 2, 4, 5, 6
    problem = quadratic(sizes=(n,) * 7)
    result = run(problem, fm.PowerOfChoice(m=m, d=d, loss=loss), algorithm, dtype=dtype, batch_size=4, rounds=2)
    for record in result.history:
        assert len(record.cohort) == m
        assert record.bytes_down == (d - m + m * down) * D * dtype.itemsize
        assert record.bytes_up == (m * up * D + d) * dtype.itemsize
        assert record.probed == d * {"full": n, "batch": 4}[loss]


def test_samples_computed_only_for_selection_are_counted():
    """ActiveFL and Oort have the cohort evaluate all its data at x, for selection alone: `probed` says so."""
    for selector in (fm.ActiveFL(m=2), fm.Oort(m=2)):
        for record in run(quadratic(sizes=(6,) * 7), selector, rounds=2, batch_size=2).history:
            assert record.bytes_up == 2 * (5 + 1) * 8
            assert record.probed == 2 * 6
