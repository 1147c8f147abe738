"""Selectors that choose uploads after local training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.problems import Quadratic, quadratic
from helpers.selection import LR, WIRES, K, run, tensor

COHORTS = ((0, 2, 3, 5), (1, 2, 4, 6), (0, 1, 5, 6))
"""By round, in turn."""


@dataclass(frozen=True)
class Thinning(fm.Selector):
    """Cohorts in turn with weights ¼; those at even places with a report above the median upload, with weight ½."""

    asked: tuple[str, ...] = ("update_norm",)
    notes: list = field(default_factory=list, compare=False, repr=False)

    @property
    def reports(self):
        return self.asked

    def select(self, view):
        return torch.tensor(COHORTS[view.round % 3]), torch.full((4,), 0.25)

    def thin(self, view, reports):
        self.notes.append((view.cohort.tolist(), view.weights.tolist(), {n: v.tolist() for n, v in reports.items()}))
        first = reports[self.asked[0]]
        chosen = first >= first.median()
        return view.cohort[chosen], torch.full((int(chosen.sum()),), 0.5)


@dataclass(frozen=True)
class All(Thinning):
    """Everyone uploads, with the weights of the selection."""

    def thin(self, view, reports):
        return view.cohort, view.weights


def replay(problem: Quadratic, result: fm.Result) -> np.ndarray:
    """FedAvg by hand with full batches: the cohort trains, and the uploads are added with the thinned weights."""
    x = problem.x0
    for t, record in enumerate(result.history):
        assert record.cohort == list(COHORTS[t % 3])
        deltas = {}
        for i in record.cohort:
            y = x
            for _ in range(K):
                y = y - LR * problem.gradient(i, y)
            deltas[i] = y - x
        norms = {i: np.linalg.norm(v) for i, v in deltas.items()}
        chosen = [i for i in record.cohort if norms[i] >= sorted(norms.values())[1]]
        assert record.uploaded == chosen
        assert record.upload_weights == [0.5] * len(chosen)
        x = x + sum(0.5 * deltas[i] for i in chosen)
    return x


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_sums_are_of_those_who_upload(engine):
    problem, selector = quadratic(), Thinning()
    result = run(problem, selector, rounds=6, engine=engine)
    np.testing.assert_allclose(result.params.numpy(), replay(problem, result), rtol=0, atol=1e-12)
    cohort, weights, reports = selector.notes[0]
    assert cohort == list(COHORTS[0])
    assert weights == [0.25] * 4
    assert set(reports) == {"update_norm"}


@pytest.mark.parametrize("wire", WIRES)
def test_bytes(wire):
    """All receive everything; those left out send their report only (and, before, what the extra phase needs)."""
    algorithm, down, up = WIRES[wire]
    result = run(quadratic(), Thinning(("update_norm", "loss")), algorithm, rounds=4)
    extra = int(wire == "MimeMom")
    for record in result.history:
        assert record.bytes_down == 4 * down * 5 * 8
        left = 4 - len(record.uploaded)
        assert record.bytes_up == (len(record.uploaded) * (5 * up + 2) + left * (5 * extra + 2)) * 8


@dataclass(frozen=True, kw_only=True)
class Telling(fm.Algorithm):
    lr: float
    up = ("delta", ("steps", ()))

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "steps": c.K * (1 + c.p)}, {}


def test_an_uploaded_number_is_sent_once():
    """Those asked send it with their report, and not again."""
    result = run(quadratic(), Thinning(("steps", "loss")), Telling(lr=LR), rounds=3)
    for record in result.history:
        assert record.bytes_up == (len(record.uploaded) * (5 + 2) + (4 - len(record.uploaded)) * 2) * 8


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", WIRES)
def test_thinning_to_everyone_changes_nothing(name, engine):
    """The same bits as without, and the same client state."""
    algorithm = WIRES[name][0]
    given = {"rounds": 6, "engine": engine, "batch_size": 4}
    plain = run(quadratic(), fm.FixedCohorts(COHORTS, [[0.25] * 4] * 3), algorithm, **given)
    thinned = run(quadratic(), All(), algorithm, **given)
    assert torch.equal(plain.params, thinned.params)
    for key, v in plain.server_state.items():
        assert torch.equal(v, thinned.server_state[key])
    assert plain.clients.keys() == thinned.clients.keys()
    for i in plain.clients:
        for key, v in plain.clients[i].items():
            assert torch.equal(v, thinned.clients[i][key])
    assert [record.uploaded for record in thinned.history] == [record.cohort for record in plain.history]
    assert [record.uploaded for record in plain.history] == [None] * 6


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_those_left_out_keep_their_state(engine):
    """SCAFFOLD's c stays Σ p_i c_i: whoever does not upload keeps the c_i from before the round."""
    problem = quadratic()
    result = run(problem, Thinning(), fm.Scaffold(lr=LR), rounds=2, engine=engine)
    uploaded = {i for record in result.history for i in record.uploaded}
    assert uploaded == set(result.clients) < set(range(7))
    c = sum(problem.p[i] * result.client_state(i)["c_i"].numpy() for i in uploaded)
    np.testing.assert_allclose(result.server_state["c"].numpy(), c, atol=1e-12)
    assert {i for i in range(7) if result.selection["picks"][i] > 0} == uploaded


def test_reports_of_all_are_kept():
    """Those left out have reported, too."""
    result = run(quadratic(), Thinning(), rounds=3)
    assert bool(result.selection["reported.update_norm"].isfinite().all())


def test_reports_at_start():
    """Losses at x are there in time, too."""
    selector = Thinning(("start_loss", "loss", "start_squared_loss"))
    run(quadratic(), selector, rounds=2)
    problem = quadratic()
    for place, i in enumerate(COHORTS[0]):
        a, b = problem.samples[i]
        losses = ((a * problem.x0 - b) ** 2).sum(1) / 2
        assert selector.notes[0][2]["start_loss"][place] == pytest.approx(losses.mean())
        assert selector.notes[0][2]["start_squared_loss"][place] == pytest.approx((losses**2).mean())


@dataclass(frozen=True)
class Nobody(Thinning):
    def thin(self, view, reports):
        return view.cohort[:0], view.weights[:0]


def test_a_round_without_uploads_is_abandoned():
    result = run(quadratic(), Nobody(), fm.Scaffold(lr=LR), rounds=2)
    assert [record.abandoned for record in result.history] == [True, True]
    assert [record.uploaded for record in result.history] == [[], []]
    assert [record.bytes_up for record in result.history] == [4 * 8] * 2
    np.testing.assert_array_equal(result.params.numpy(), quadratic().x0)
    assert not result.clients


def test_merged_runs():
    """Each as if alone, whatever the others choose."""
    problem = quadratic()
    given = {"local_steps": K, "batch_size": 4, "dtype": torch.float64, "device": "cpu", "engine": "batched"}
    given |= {"rounds": 5, "loss": problem.loss}
    jobs = [
        {"algorithm": fm.Scaffold(lr=lr), "selection": selection, "seed": seed}
        for seed in (0, 1)
        for selection in (Thinning(), fm.OCS(m=2), fm.Uniform(m=4), fm.Clustered(m=3, by="similarity"))
        for lr in (LR, 2 * LR)
    ]
    together = fm.run_many([{"model": problem.model(), "data": problem.data()} | given | job for job in jobs])
    for job, result in zip(jobs, together, strict=True):
        alone = fm.run(problem.model(), problem.data(), **given | job)
        assert [r.uploaded for r in result.history] == [r.uploaded for r in alone.history]
        assert [r.cohort for r in result.history] == [r.cohort for r in alone.history]
        torch.testing.assert_close(result.params, alone.params, rtol=0, atol=1e-12)
        assert result.clients.keys() == alone.clients.keys()


def test_resume(tmp_path):
    """A resumed run chooses as one that was not interrupted."""
    given = {"selection": fm.OCS(m=2, d=5), "algorithm": fm.Scaffold(lr=LR), "batch_size": 4}
    whole = run(quadratic(), **given, rounds=6)
    run(quadratic(), **given, rounds=3, out=tmp_path)
    resumed = run(quadratic(), **given, rounds=6, out=tmp_path, resume=True)
    assert [r.uploaded for r in resumed.history] == [r.uploaded for r in whole.history]
    assert [r.upload_weights for r in resumed.history] == [r.upload_weights for r in whole.history]
    assert torch.equal(resumed.params, whole.params)


# ------------------------------------------------------------------------- deadlines and bad updates
def test_late_clients_are_left_out_before():
    """The others' weights are scaled up to the same sum, which the selector sees; the record names both."""
    selector = Thinning()
    speeds = [1.0, 100, 100, 0.1, 100, 100, 100]
    system = fm.System(speed=fm.PerClient(speeds), down=1e9, up=1e9, deadline=50)
    result = run(quadratic(), selector, rounds=3, system=system)
    assert [record.late for record in result.history] == [[3], [], []]
    cohort, weights, _ = selector.notes[0]
    assert cohort == [0, 2, 5]
    assert weights == pytest.approx([1 / 3] * 3)
    assert set(result.history[0].uploaded) < {0, 2, 5}


def test_time_of_those_left_out():
    """They do not spend the time of an upload: 40 bytes at a byte a second, and 8 for the report."""
    system = fm.System(speed=1e9, down=1e9, up=1.0)
    result = run(quadratic(), Thinning(), rounds=1, system=system)
    durations = result.selection["durations"][list(COHORTS[0])].tolist()
    uploaded = [i in result.history[0].uploaded for i in COHORTS[0]]
    assert durations == pytest.approx([48 if up else 8 for up in uploaded], abs=1e-3)
    assert result.history[0].clock == pytest.approx(48, abs=1e-3)
    quiet = run(quadratic(), Nobody(), rounds=1, system=system)
    assert quiet.history[0].clock == pytest.approx(8, abs=1e-3)


def test_below_the_quorum_nobody_is_asked():
    selector = Thinning()
    speeds = [0.1, 100, 0.1, 0.1, 100, 100, 100]
    system = fm.System(speed=fm.PerClient(speeds), down=1e9, up=1e9, deadline=50, quorum=0.5)
    result = run(quadratic(), selector, rounds=1, system=system)
    assert result.history[0].abandoned
    assert result.history[0].uploaded == []
    assert selector.notes == []


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_bad_updates_are_dropped_before(engine):
    """Client 2's update is not finite: the selector does not see it."""
    problem = quadratic()
    a, b = problem.samples[2]
    problem.samples[2] = (1e200 * a, b)
    selector = Thinning()
    result = run(problem, selector, rounds=2, on_bad_update="drop", engine=engine)
    assert [notes[0] for notes in selector.notes] == [[0, 3, 5], [1, 4, 6]]
    assert selector.notes[0][1] == pytest.approx([1 / 3] * 3)
    assert all(2 not in record.uploaded for record in result.history)
    assert bool(result.params.isfinite().all())


def test_bad_updates_stop_the_run():
    problem = quadratic()
    a, b = problem.samples[2]
    problem.samples[2] = (1e200 * a, b)
    with pytest.raises(fm.DivergenceError, match="The update of client 2 in round 1 is not finite"):
        run(problem, Thinning(), rounds=2)


# ------------------------------------------------------------------------------------------- mistakes
@dataclass(frozen=True)
class Mistaken(fm.Selector):
    answer: Callable[[fm.View, Any], Any]

    def select(self, view):
        return torch.tensor([1, 4]), tensor([0.5, 0.5])

    def thin(self, view, reports):
        return self.answer(view, reports)


def changed(view, reports):
    view.state["mood"] = torch.ones(1)
    return view.cohort, view.weights


def written(view, reports):
    view.p[0] = 1
    return view.cohort, view.weights


MISTAKES = {
    "one value": (lambda v, r: v.cohort, "Mistaken: 'thin' must return client numbers and their weights, got Tensor (torch.int64) of shape (2,)"),
    "nothing": (lambda v, r: None, "Mistaken: 'thin' must return client numbers and their weights, got None"),
    "unknown": (lambda v, r: ([1, 2], [1, 1]), "Mistaken: 'thin' must return clients of the cohort ([1, 4]), got [1, 2]"),
    "not numbers": (lambda v, r: ([1.0], [1]), "Mistaken: 'thin' must return clients of the cohort ([1, 4]), got [1.0]"),
    "a matrix": (lambda v, r: ([[1]], [[1]]), "Mistaken: 'thin' must return clients of the cohort ([1, 4]), got [[1]]"),
    "negative": (lambda v, r: ([1], [-1]), "Mistaken: 'thin' must return a weight ≥ 0 for each client, got [-1]"),
    "NaN": (lambda v, r: ([1], [np.nan]), "Mistaken: 'thin' must return a weight ≥ 0 for each client, got [nan]"),
    "too few": (lambda v, r: ([1, 4], [1]), "Mistaken: 'thin' must return a weight ≥ 0 for each client, got [1]"),
    "undeclared": (lambda v, r: r["loss"], "Mistaken: there is no reports['loss']; 'reports' declares nothing"),
    "asks": (lambda v, r: v.probe(v.cohort), "Mistaken: 'thin' cannot ask clients; name what it needs in 'reports'"),
    "state": (changed, "Mistaken: 'thin' must not change the view or its state; change the state in 'select'"),
    "view": (written, "Mistaken: 'thin' must not change the view or its state; change the state in 'select'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    answer, sentence = MISTAKES[name]
    with pytest.raises(ValueError) as error:
        run(quadratic(), Mistaken(answer))
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    "ids", [[4, 1, 4], np.array([4, 1, 4]), torch.tensor([4, 1, 4])], ids=["list", "array", "tensor"]
)
def test_repeated_clients_upload_once(ids):
    result = run(quadratic(), Mistaken(lambda view, reports: (ids, [0.1, 0.2, 0.3])), rounds=1)
    assert result.history[0].uploaded == [1, 4]
    assert result.history[0].upload_weights == pytest.approx([0.2, 0.4])


def test_availability():
    """Clients are numbered as in `select`: by those available."""
    seen = []

    def answer(view, reports):
        seen.append((view.cohort.tolist(), view.N))
        return [4], [1.0]

    class Even(fm.Availability):
        def available(self, seed, round, N):
            return torch.arange(N) != 0

    result = run(quadratic(), Mistaken(answer), rounds=1, availability=Even())
    assert seen == [([1, 4], 6)]
    assert result.history[0].cohort == [2, 5]
    assert result.history[0].uploaded == [5]


@pytest.mark.parametrize("algorithm", [fm.Mime(lr=LR, beta=0.5), fm.Scaffold(lr=LR)], ids=lambda a: type(a).__name__)
def test_late_and_bad_updates_with_an_extra_phase(algorithm):
    """Late clients are left out of both phases, clients with bad updates are dropped: alike on both engines."""
    problem = quadratic()
    a, b = problem.samples[2]
    problem.samples[2] = (1e200 * a, b)
    speeds = fm.PerClient([1.0, 100, 100, 0.1, 100, 100, 100])
    system = fm.System(speed=speeds, down=1e9, up=1e9, deadline=60)
    given = {"system": system, "on_bad_update": "drop", "rounds": 4}
    loop, batched = (run(problem, Thinning(), algorithm, engine=engine, **given) for engine in ("loop", "batched"))
    torch.testing.assert_close(loop.params, batched.params, rtol=0, atol=1e-12)
    assert bool(loop.params.isfinite().all())
    for one, other in zip(loop.history, batched.history, strict=True):
        assert one.uploaded == other.uploaded
        assert 0 < len(one.uploaded) < 4
        assert not set(one.uploaded) & {2, 3}
        assert one.late == ([3] if 3 in one.cohort else [])
