"""Reports by name: what clients compute, and what they send."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.engine.executor import JobExecutor
from helpers.compiling import scalar_code
from helpers.problems import Quadratic, quadratic
from helpers.selection import LR, K, run, tensor

BUILT_IN = ("update_norm", "gradient_noise", "loss", "start_loss", "start_squared_loss")


@dataclass(frozen=True)
class Asking(fm.Selector):
    """Two clients in turn; they report what it names."""

    asked: tuple[str, ...] = BUILT_IN

    @property
    def reports(self):
        return self.asked

    def select(self, view):
        return torch.tensor([view.round % view.N, (view.round + 3) % view.N]), tensor([0.5, 0.5])


@dataclass(frozen=True, kw_only=True)
class Telling(fm.Algorithm):
    """FedAvg that uploads the length of its path, too, and a number per client besides."""

    lr: float
    up = ("delta", ("length", ()), ("steps", ()))
    reduce = {"A": ("delta", "w"), "length": ("length", "avg")}

    def begin(self, y, c, grad):
        return {"length": torch.zeros_like(c.K)}

    def step(self, y, s, c, grad, k):
        step = c.lr * grad(y)
        return y - step, {"length": s["length"] + step.norm(dim=-1, keepdim=True)}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "length": s["length"], "steps": c.K}, {}


@dataclass(frozen=True, kw_only=True)
class Split(fm.Algorithm):
    """Without an upload "delta": both halves of it, added up by the server."""

    lr: float
    up = ("low", "high")
    reduce = {"L": ("low", "w"), "H": ("high", "w")}

    def finish(self, y, s, c, grad):
        return {"low": 0.25 * (y - c.x), "high": 0.75 * (y - c.x)}, {}

    def server(self, x, state, agg, ctx):
        return x + agg["L"] + agg["H"], {}


def replay(problem: Quadratic, result: fm.Result) -> dict[int, dict[str, float]]:
    """FedAvg with full batches by hand: the last reports of each client."""
    x, found = problem.x0, {}
    for record in result.history:
        step = np.zeros_like(x)
        for i, w in zip(record.cohort, record.weights, strict=True):
            y, gradients = x, []
            for _ in range(K):
                gradients.append(problem.gradient(i, y))
                y = y - LR * gradients[-1]
            changes = [np.sum((b - a) ** 2) for a, b in itertools.pairwise(gradients)]
            found[i] = {
                "update_norm": np.linalg.norm(y - x),
                "gradient_noise": sum(changes) / (2 * (K - 1)),
                "length": LR * sum(np.linalg.norm(g) for g in gradients),
                "steps": K,
                "halves": np.sqrt(0.25**2 + 0.75**2) * np.linalg.norm(y - x),
            }
            step = step + w * (y - x)
        x = x + step
    return found


def reported(result: fm.Result, name: str) -> np.ndarray:
    return result.selection[f"reported.{name}"].numpy()


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", ["update_norm", "gradient_noise"])
def test_built_in_reports(engine, name):
    """Held against the definition; one number up for each report."""
    problem = quadratic()
    result = run(problem, Asking((name,)), rounds=8, engine=engine)
    expected = replay(problem, result)
    np.testing.assert_allclose(reported(result, name), [expected[i][name] for i in range(7)], rtol=1e-12)
    assert {record.bytes_up for record in result.history} == {2 * (5 + 1) * 8}
    assert {record.probed for record in result.history} == {0}


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_numbers_that_the_algorithm_uploads(engine):
    """They are read from the upload: no bytes but those that the algorithm declares."""
    problem = quadratic()
    result = run(problem, Asking(("steps", "length")), Telling(lr=LR), rounds=8, engine=engine)
    expected = replay(problem, result)
    for name in ("length", "steps"):
        np.testing.assert_allclose(reported(result, name), [expected[i][name] for i in range(7)], rtol=1e-12)
    assert {record.bytes_up for record in result.history} == {2 * (5 + 2) * 8}
    both = run(problem, Asking(("steps", "update_norm", "start_loss")), Telling(lr=LR), rounds=2, engine=engine)
    assert {record.bytes_up for record in both.history} == {2 * (5 + 2 + 2) * 8}


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_update_norm_without_a_delta(engine):
    """All uploads as one vector."""
    problem = quadratic()
    result = run(problem, Asking(("update_norm",)), Split(lr=LR), rounds=8, engine=engine)
    expected = replay(problem, result)
    np.testing.assert_allclose(reported(result, "update_norm"), [expected[i]["halves"] for i in range(7)], rtol=1e-12)


def test_noise_of_clients_with_unequal_steps():
    """Each client counts its own steps; one whose data are a single batch has no noise."""
    problem, found = quadratic(sizes=(4, 8, 12, 3, 4), importance=(1,) * 5), {}
    given = {"local_steps": None, "local_epochs": 1, "batch_size": 4, "rounds": 1}
    for engine in ("loop", "batched"):
        result = run(problem, Everyone(), Steps(lr=LR), engine=engine, **given)
        found[engine] = reported(result, "gradient_noise")
        assert reported(result, "steps").tolist() == [1, 2, 3, 1, 1]
        assert (found[engine][[0, 3, 4]] == 0).all()
        assert (found[engine][[1, 2]] > 0).all()
    np.testing.assert_allclose(found["loop"], found["batched"], rtol=1e-12)


@dataclass(frozen=True)
class Everyone(fm.Full):
    reports = ("gradient_noise", "steps")


@dataclass(frozen=True, kw_only=True)
class Steps(fm.Algorithm):
    lr: float
    up = ("delta", ("steps", ()))

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "steps": c.K}, {}


@pytest.mark.extended
def test_noise_estimates_the_variance():
    """With a tiny step, y hardly moves: the estimate is near the variance of a batch of one, Σ‖g_j − ∇f‖²/(n − 1)."""
    problem = quadratic(sizes=(30, 60), importance=(0.5, 0.5))

    @dataclass(frozen=True)
    class All(fm.Full):
        reports = ("gradient_noise",)

    result = run(problem, All(), fm.FedAvg(lr=1e-9), local_steps=3000, batch_size=1, rounds=1)
    for i, noise in enumerate(reported(result, "gradient_noise")):
        a, b = problem.samples[i]
        rows = problem.sample_gradients(problem.x0, a, b)
        assert noise == pytest.approx(rows.var(0).sum() * len(a) / (len(a) - 1), rel=0.1)


@dataclass(frozen=True, kw_only=True)
class Twice(fm.Algorithm):
    """FedAvg that looks at other gradients before and after that of its step."""

    lr: float

    def begin(self, y, c, grad):
        return {"seen": grad.full(y + 2) + grad.batch(y - 1, 3)}

    def step(self, y, s, c, grad, k):
        return y - c.lr * grad(y), {"seen": grad(y + 1)}


def test_only_the_first_gradient_of_a_step_counts():
    problem = quadratic()
    plain = run(problem, Asking(("gradient_noise",)), fm.FedAvg(lr=LR), rounds=7)
    other = run(problem, Asking(("gradient_noise",)), Twice(lr=LR), rounds=7)
    np.testing.assert_allclose(reported(plain, "gradient_noise"), reported(other, "gradient_noise"), rtol=1e-10)


def test_the_run_does_not_depend_on_reports():
    """Asking changes what is recorded, not what is trained."""
    quiet = run(quadratic(), Asking(()), Telling(lr=LR), batch_size=4, engine="batched")
    asked = run(quadratic(), Asking((*BUILT_IN, "length")), Telling(lr=LR), batch_size=4, engine="batched")
    assert torch.equal(quiet.params, asked.params)


def test_merged_runs_report_alike():
    """Runs side by side, some of which ask for other reports: each as if alone."""
    problem = quadratic()
    selectors = [Asking(("update_norm",)), Asking(("gradient_noise", "length")), Asking(())]
    given = {"local_steps": K, "batch_size": 4, "dtype": torch.float64, "device": "cpu", "engine": "batched"}
    given |= {"rounds": 4, "loss": problem.loss}
    jobs = [
        {"algorithm": Telling(lr=lr), "selection": selector, "seed": seed}
        for seed, (selector, lr) in enumerate((s, lr) for s in selectors for lr in (LR, 2 * LR))
    ]
    together = fm.run_many([{"model": problem.model(), "data": problem.data()} | given | job for job in jobs])
    for job, result in zip(jobs, together, strict=True):
        alone = fm.run(problem.model(), problem.data(), **given | job)
        for name in job["selection"].reports:
            np.testing.assert_allclose(reported(result, name), reported(alone, name), rtol=1e-12)


def test_compiled_programs_report_alike(quick, monkeypatch):
    """Where a plain step is compiled with its gradient, the noise needs the gradient by itself."""
    given = {"selection": Asking(("gradient_noise", "update_norm", "loss")), "algorithm": fm.FedAvg(lr=0.1)}
    given |= {"dtype": torch.float64, "rounds": 2, "local_steps": 3}
    plain = quick(**given, engine="loop")
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        result = quick(**given)
    assert result.info["compiled"]
    for name in given["selection"].reports:
        np.testing.assert_allclose(reported(result, name), reported(plain, name), rtol=1e-9)


class Replayed:
    """In place of captured graphs: a function is kept for each key, and its outputs are overwritten by the next call."""

    def __init__(self) -> None:
        self.made: dict = {}
        self.outputs: list = []

    def run(self, key, body, *given):
        for v in self.outputs:
            v.fill_(torch.nan)
        outputs = self.made.setdefault(key, body)(*given)
        self.outputs = [*outputs.uploads.values(), *outputs.own.values(), outputs.report]
        return outputs


@pytest.mark.parametrize(
    "selection", [Asking(("gradient_noise", "length", "loss")), fm.OCS(m=2, d=5), fm.DELTA(m=4)], ids=repr
)
def test_captured_graphs(monkeypatch, selection):
    """A graph for each set of reports; what a replay overwrites is copied, also if the selector chooses later."""
    given = {"rounds": 4, "engine": "batched", "batch_size": 4, "algorithm": Telling(lr=LR)}
    plain = run(quadratic(), selection, **given)
    make, executors = JobExecutor.__init__, []

    def recording(self, *arguments) -> None:
        make(self, *arguments)
        self._graphs = Replayed()
        self.plan = replace(self.plan, chunk=2)
        executors.append(self)

    monkeypatch.setattr(JobExecutor, "__init__", recording)
    captured = run(quadratic(), selection, **given)
    torch.testing.assert_close(captured.params, plain.params, rtol=0, atol=1e-12)
    assert [r.uploaded for r in captured.history] == [r.uploaded for r in plain.history]
    for name in selection.reports:
        np.testing.assert_allclose(reported(captured, name), reported(plain, name), rtol=1e-10)
    assert any(executor._graphs.made for executor in executors)


def test_work_is_done_only_for_what_is_asked(monkeypatch):
    """A row for each report, besides the largest value."""
    rows, execute = set(), JobExecutor.execute

    def spy(self, job, observer=None):
        result = execute(self, job, observer)
        rows.add(tuple(result.report.shape))
        return result

    monkeypatch.setattr(JobExecutor, "execute", spy)
    run(quadratic(), Asking(()), rounds=1, engine="batched")
    assert rows == {(1, 2)}
    run(quadratic(), Asking(("loss", "start_loss", "update_norm")), rounds=1, engine="batched")
    assert rows == {(1, 2), (3, 2)}


def test_reports_resume(tmp_path):
    """A resumed run goes on with the reports of the first part."""
    given = {"selection": Asking((*BUILT_IN, "length")), "algorithm": Telling(lr=LR), "batch_size": 4}
    whole = run(quadratic(), **given, rounds=5)
    run(quadratic(), **given, rounds=3, out=tmp_path)
    resumed = run(quadratic(), **given, rounds=5, out=tmp_path, resume=True)
    for name in given["selection"].reports:
        assert np.array_equal(reported(resumed, name), reported(whole, name), equal_nan=True)


@dataclass(frozen=True, kw_only=True)
class Ambiguous(fm.Algorithm):
    lr: float
    up = ("delta", ("loss", ()))

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "loss": c.K}, {}


NAMES = "loss, start_loss, start_squared_loss, update_norm, gradient_noise"


@pytest.mark.parametrize(
    ("asked", "algorithm", "sentence"),
    [
        (("lenght",), Telling(lr=LR), f"Asking: 'reports' must be of {NAMES}, or of the numbers that Telling uploads "
         "(length, steps), got 'lenght' (did you mean 'length'?)"),
        (("delta",), fm.FedAvg(lr=LR), f"Asking: 'reports' must be of {NAMES}, got 'delta'"),
        ("loss", fm.FedAvg(lr=LR), "Asking: 'reports' must be a tuple of names, got 'loss'"),
        (("loss",), Ambiguous(lr=LR), "Cannot report 'loss' because Ambiguous uploads it, too; use another name in 'up'"),
    ],
    ids=["misspelt", "a vector", "a text", "two of a name"],
)  # fmt: skip
def test_unknown_reports(asked, algorithm, sentence):
    with pytest.raises(ValueError) as error:
        run(quadratic(), Asking(asked), algorithm)
    assert str(error.value) == sentence


def test_noise_needs_two_steps():
    with pytest.raises(ValueError, match=r"^Cannot report 'gradient_noise' because clients take one local step; use"):
        run(quadratic(), Asking(("gradient_noise",)), local_steps=1)
