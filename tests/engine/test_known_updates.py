"""The clients' last updates, which a selector can read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.problems import Quadratic, quadratic
from helpers.selection import LR, K, run, tensor


@dataclass(frozen=True)
class Reading(fm.Selector):
    """Two clients in turn; notes what it knows of updates."""

    notes: list = field(default_factory=list, compare=False, repr=False)
    updates = True

    def select(self, view):
        self.notes.append({i: v.clone() for i, v in view.updates.items()})
        return torch.tensor([view.round % view.N, (view.round + 3) % view.N]), tensor([0.5, 0.5])


@dataclass(frozen=True, kw_only=True)
class Split(fm.Algorithm):
    """Without an upload "delta"."""

    lr: float
    up = ("low", ("steps", ()), "high")
    reduce = {"L": ("low", "w"), "H": ("high", "w")}

    def finish(self, y, s, c, grad):
        return {"low": 0.25 * (y - c.x), "steps": c.K, "high": 0.75 * (y - c.x)}, {}

    def server(self, x, state, agg, ctx):
        return x + agg["L"] + agg["H"], {}


def replay(problem: Quadratic, result: fm.Result) -> list[dict[int, np.ndarray]]:
    """By round, the last update of each client before it."""
    x, known, found = problem.x0, {}, []
    for record in result.history:
        found.append(dict(known))
        step = np.zeros_like(x)
        for i, w in zip(record.cohort, record.weights, strict=True):
            y = x
            for _ in range(K):
                y = y - LR * problem.gradient(i, y)
            known[i] = y - x
            step = step + w * known[i]
        x = x + step
    return found


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_last_update_of_each_client(engine):
    problem, selector = quadratic(), Reading()
    result = run(problem, selector, rounds=9, engine=engine)
    for notes, expected in zip(selector.notes, replay(problem, result), strict=True):
        assert set(notes) == set(expected)
        for i, v in expected.items():
            np.testing.assert_allclose(notes[i].numpy(), v, rtol=0, atol=1e-12)


def test_all_uploads_as_one_vector_without_a_delta():
    problem, selector = quadratic(), Reading()
    result = run(problem, selector, Split(lr=LR), rounds=4)
    for notes, expected in zip(selector.notes, replay(problem, result), strict=True):
        for i, v in expected.items():
            np.testing.assert_allclose(notes[i].numpy(), [*(0.25 * v), K, *(0.75 * v)], rtol=0, atol=1e-12)


def test_updates_cost_nothing():
    """The server has them anyway: the same bytes, the same model."""
    reading = run(quadratic(), Reading(), rounds=5, batch_size=4)
    plain = run(
        quadratic(), fm.FixedCohorts([r.cohort for r in reading.history], [[0.5, 0.5]] * 5), rounds=5, batch_size=4
    )
    assert torch.equal(reading.params, plain.params)
    assert [r.bytes_up for r in reading.history] == [r.bytes_up for r in plain.history]
    assert "updates" not in plain.selection


def test_resume(tmp_path):
    """What is known is saved, sparsely, and read again."""
    whole, parts = Reading(), Reading()
    run(quadratic(), whole, rounds=6, batch_size=4)
    for rounds in (2, 5, 6):
        result = run(quadratic(), parts, rounds=rounds, batch_size=4, out=tmp_path, resume=True)
    assert len(whole.notes) == len(parts.notes) == 6
    for one, other in zip(whole.notes, parts.notes, strict=True):
        assert set(one) == set(other)
        assert all(torch.equal(one[i], other[i]) for i in one)
    assert sorted(result.selection["updated"].tolist()) == sorted({i for r in result.history for i in r.cohort})
    assert result.selection["updates"].shape == (7, 5)


class Odd(fm.Availability):
    def available(self, seed, round, N):
        return torch.arange(N) % 2 == 1


def test_clients_are_numbered_as_in_the_view():
    selector = Reading()
    result = run(quadratic(), selector, rounds=4, availability=Odd())
    federation = {i for r in result.history[:3] for i in r.cohort}
    assert {2 * i + 1 for i in selector.notes[3]} == federation <= {1, 3, 5}


@dataclass(frozen=True)
class Writing(Reading):
    def select(self, view):
        for v in view.updates.values():
            v += 1
        return torch.tensor([0]), tensor([1.0])


def test_updates_are_read_only():
    with pytest.raises(ValueError, match=r"^Writing: 'select' must not change the tensors of the view; use a clone$"):
        run(quadratic(), Writing(), rounds=2)


@dataclass(frozen=True)
class OnlyFirst(Reading):
    def select(self, view):
        self.notes.append(set(view.updates))
        return torch.tensor([0, 2, 4]), tensor([0.5, 0.25, 0.25])

    def thin(self, view, reports):
        return view.cohort[:1], tensor([1.0])


def test_only_those_who_upload_are_known():
    selector = OnlyFirst()
    run(quadratic(), selector, rounds=2)
    assert selector.notes == [set(), {0}]


@dataclass(frozen=True)
class EveryoneKnown(fm.Full):
    updates = True


def test_a_round_in_which_all_are_late():
    """No update becomes known, and the round is abandoned."""
    system = fm.System(speed=1e-3, deadline=1.0)
    result = run(quadratic(), EveryoneKnown(), system=system, rounds=2)
    assert [record.abandoned for record in result.history] == [True, True]
