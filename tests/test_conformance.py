"""Every algorithm, in every engine, against its equations.

Trajectories are compared with the recursions of `reference.py`; then come the identities between methods,
what the papers prove about them, and the contract that all of them share.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import fedmos as fm
import reference
from fedmos.core.flat_model import FlatModel
from fedmos.core.losses import Loss
from fedmos.engine.batches import Batches, Chunk
from fedmos.engine.task import Task
from reference import Problem, logistic, quadratic, simulate

LR, SEED, ROUNDS = 0.08, 5, 12
QUADRATIC, LOGISTIC = quadratic(), logistic()

# Client 6 never takes part, client 1 is drawn twice in round 2, round 1 has a cohort of one, and nothing sums to one.
COHORTS = [(0, 3, 1), (2,), (4, 1, 1, 5), (3, 0), (5, 2, 4, 1, 0), (1,), (3, 5)]
WEIGHTS = [(0.5, 0.2, 0.1), (0.9,), (0.3, 0.15, 0.1, 0.6), (0.45, 0.8), (0.1, 0.3, 0.2, 0.25, 0.3), (0.7,), (0.4, 0.5)]


DEVICE = os.environ.get("FEDMOS_TEST_DEVICE", "cpu")
"""`make test-gpu` runs this file with "cuda"."""


@pytest.fixture(params=["loop", "batched", "auto"])
def engine(request):
    return request.param


# ----------------------------------------------------------------------------------------- the methods


@dataclass(frozen=True)
class Case:
    """A configuration: the library's class of that name, and the recursion of that name in `reference`."""

    name: str
    wire: tuple[int, int]
    """Vectors down and up per client and round."""
    fields: dict[str, Any] = field(default_factory=dict)

    def make(self, lr: float = LR) -> fm.Algorithm:
        return getattr(fm, self.name)(lr=lr, **self.fields)

    @property
    def recursion(self) -> Callable:
        return getattr(reference, self.name.lower())

    def __str__(self) -> str:
        return f"{self.name}({','.join(f'{name}={value}' for name, value in self.fields.items())})"


def case(name: str, down: int, up: int, **fields: Any) -> Case:
    return Case(name, (down, up), fields)


CASES = [
    case("FedAvg", 1, 1),
    case("FedAvg", 1, 1, server_lr=0.7),
    case("FedProx", 1, 1, mu=0.3),
    case("FedProx", 1, 1, mu=1.5, server_lr=0.7),
    case("FedAvgM", 1, 1),
    case("FedAvgM", 1, 1, beta=0.6, server_lr=0.7),
    case("FedAdam", 1, 1),
    case("FedAdam", 1, 1, server_lr=0.03, beta1=0.5, beta2=0.9, tau=0.01),
    case("FedYogi", 1, 1),
    case("FedYogi", 1, 1, server_lr=0.03, beta1=0.5, beta2=0.3, tau=0.1),
    case("FedAdagrad", 1, 1),
    case("FedAdagrad", 1, 1, server_lr=0.03, beta1=0.5, tau=0.01),
    case("Scaffold", 2, 2),
    case("Scaffold", 2, 2, server_lr=0.7, option=2),
    case("Scaffold", 2, 2, server_lr=0.7, option=1),
    case("FedDyn", 1, 1),
    case("FedDyn", 1, 1, alpha=0.5),
    case("AdaBest", 1, 1),
    case("AdaBest", 1, 1, mu=0.4, beta=0.5),
    case("FedCM", 2, 1),
    case("FedCM", 2, 1, alpha=0.3, server_lr=0.7),
    case("FedADC", 2, 1),
    case("FedADC", 2, 1, beta=0.6, beta_local=0.3, server_lr=0.7),
    case("Mime", 2, 2),
    case("Mime", 3, 2, beta=0.6, server_lr=0.7),
    case("MimeLite", 1, 1),
    case("MimeLite", 2, 2, beta=0.6, server_lr=0.7),
    case("Stem", 2, 2),
    case("Stem", 2, 2, a=0.6),
    case("FedLomo", 1, 1),
    case("FedLomo", 1, 1, first_batch=2),
    case("GHBM", 2, 1),
    case("GHBM", 2, 1, beta=0.6, tau=3, server_lr=0.7),
    case("GHBM", 2, 1, beta=0.6, tau=3, start="x0"),
    case("LocalGHBM", 1, 1),
    case("LocalGHBM", 1, 1, first="shared"),
    case("LocalGHBM", 1, 1, beta=0.6, scale="elapsed"),
    case("LocalGHBM", 1, 1, server_lr=0.7),
    case("LocalGHBM", 1, 1, beta=0.6, scale="elapsed", first="shared"),
    case("FedHBM", 1, 1),
    case("FedHBM", 1, 1, first="shared"),
    case("FedHBM", 1, 1, beta=0.6, scale="elapsed"),
    case("FedHBM", 1, 1, server_lr=0.7),
    case("FedHBM", 1, 1, beta=0.6, scale="elapsed", first="shared"),
    case("FedMoS", 1, 1),
    case("FedMoS", 1, 1, a=0.0, mu=0.05, beta=0.5),
    case("FedMoS", 1, 1, a=0.3, mu=0.05, beta=0.5),
    case("FedMoS", 1, 1, a=1.0, mu=0.05, beta=0.5),
    case("FedMoS", 1, 1, a=0.3, mu=0.05, beta=0.5, variant="released"),
    case("FedMoS", 1, 1, a=0.3, mu=0.05, first_batch=2),
]
EACH = list({(c.name, c.wire): c for c in CASES}.values())
"""One of each class and wire."""

every_case = pytest.mark.parametrize("case", CASES, ids=str)
each_class = pytest.mark.parametrize("case", EACH, ids=str)


def test_no_algorithm_goes_untested():
    """The table names every algorithm there is, and nothing else."""
    assert {c.name for c in CASES} == set(fm.algorithms())


# -------------------------------------------------------------------------------------- running both


def train(problem: Problem, algorithm: fm.Algorithm, engine: str, selection: Any = None, rounds: int = ROUNDS, **work):
    """`fm.run` in float64, on the scripted cohorts unless told otherwise."""
    return fm.run(
        problem.model(),
        problem.data(),
        algorithm,
        selection or fm.FixedCohorts(COHORTS, WEIGHTS),
        rounds=rounds,
        loss=problem.loss,
        eval_every=rounds,
        seed=SEED,
        device=DEVICE,
        dtype=torch.float64,
        engine=engine,
        **work,
    )


def replayed(problem: Problem, **work: Any) -> Callable[[int, int], Batches]:
    """(round, client) → the batches that a run of that local work draws."""
    task = Task(
        model=FlatModel(problem.model(), torch.device("cpu"), torch.float64),
        data=problem.data(),
        loss=Loss(problem.loss),
        seed=SEED,
        **({"local_steps": None, "local_epochs": None, "batch_size": None} | work),
    )
    return lambda t, i: Batches(task, Chunk.of(task, torch.tensor([i])), t)


def rows(batch) -> list[int]:
    """The samples of a batch of one client."""
    return batch.positions[0, : batch.size[0]].tolist()


@cache
def scripted_batches(problem: Problem, local_steps: int | None, local_epochs: int | None, batch_size: int | None):
    """The samples of every step of the scripted cohorts; full batches are written down without asking the library."""
    drawn = replayed(problem, local_steps=local_steps, local_epochs=local_epochs, batch_size=batch_size)
    batches = {}
    for t in range(ROUNDS):
        for i in COHORTS[t % len(COHORTS)]:
            if batch_size is None:
                batches[t, i] = [range(problem.n[i])] * (local_steps or local_epochs)
            else:
                K = local_steps or local_epochs * -(-problem.n[i] // batch_size)
                batches[t, i] = [rows(drawn(t, i).step(k)) for k in range(K)]
    return batches


@cache
def scripted_first_batches(problem: Problem, b: int):
    drawn = replayed(problem, local_steps=1)
    return {(t, i): rows(drawn(t, i).first(b)) for t in range(ROUNDS) for i in COHORTS[t % len(COHORTS)]}


def expected(
    case: Case, problem: Problem, weights=WEIGHTS, local_steps=None, local_epochs=None, batch_size=None, **work
) -> reference.Trace:
    """The recursion, on the scripted cohorts and the batches that the library uses there."""
    b = case.fields.get("first_batch", "full")
    return simulate(
        case.recursion,
        problem,
        cohorts=COHORTS,
        weights=weights,
        batches=scripted_batches(problem, local_steps, local_epochs, batch_size),
        first_batches={} if b == "full" else scripted_first_batches(problem, b),
        rounds=ROUNDS,
        lr=LR,
        **work,
        **case.fields,
    )


def close(actual, wanted, tolerance: float = 1e-10, what: str = "") -> None:
    np.testing.assert_allclose(np.asarray(actual), wanted, rtol=tolerance, atol=tolerance, err_msg=what)


def same_run(result: fm.Result, trace: reference.Trace, tolerance: float = 1e-10, server: bool = True) -> None:
    """Model, server state and the state of every client, those that never took part included."""
    close(result.params, trace.xs[-1], tolerance, "x")
    if server:
        assert set(result.server_state) == set(trace.server)
        for name, value in trace.server.items():
            close(result.server_state[name], value, tolerance, name)
    for i in range(len(result.last)):
        assert set(result.client_state(i)) == set(trace.clients.get(i, {}))
        for name, value in result.client_state(i).items():
            close(value, trace.clients[i][name], tolerance, f"{name} of client {i}")


# -------------------------------------------------------------------------------------- trajectories

WORK = {
    "one full step": (QUADRATIC, {"local_steps": 1}),
    "full steps": (LOGISTIC, {"local_steps": 4}),
    "mini-batch steps": (LOGISTIC, {"local_steps": 3, "batch_size": 4}),
    "ragged epochs": (
        QUADRATIC,
        {"local_epochs": 2, "batch_size": 5, "lr_decay": 0.9, "weight_decay": 0.1, "clip": 2.0},
    ),
}


@every_case
@pytest.mark.parametrize("work", WORK)
def test_trajectory(case, work, engine):
    """Twelve rounds of scripted cohorts give the recursion's model and state."""
    problem, settings = WORK[work]
    result = train(problem, case.make(), engine, **settings)
    same_run(result, expected(case, problem, **settings), server=case.name != "GHBM")


@pytest.mark.parametrize(
    "case",
    [
        case("FedAvg", 1, 1, server_lr=0.7),
        case("FedProx", 1, 1, mu=1.5),
        case("FedMoS", 1, 1, a=0.3, mu=0.05, beta=0.5),
        case("FedMoS", 1, 1, a=0.3, mu=0.05, beta=0.5, variant="released"),
    ],
    ids=str,
)
@pytest.mark.parametrize("problem", [QUADRATIC, LOGISTIC], ids=["quadratic", "logistic"])
@pytest.mark.parametrize("K", [1, 3, 7])
def test_trajectory_to_twelve_digits(case, problem, K, engine):
    """Full batches, on both federations."""
    result = train(problem, case.make(), engine, local_steps=K)
    same_run(result, expected(case, problem, local_steps=K), 1e-12)


@pytest.mark.parametrize(
    "extra",
    [{"weight_decay": 0.3}, {"lr_decay": 0.8}, {"lr_decay": {3: 0.5, 7: 0.1}}, {"clip": 2.0}],
    ids=str,
)
@pytest.mark.parametrize("case", [case("FedAvg", 1, 1), case("FedMoS", 1, 1, a=0.3, mu=0.05)], ids=str)
def test_every_gradient_is_clipped_and_decayed(case, extra, engine):
    """clip(g) + wd·y and η_t, one at a time; each of them makes a difference."""
    problem, work = QUADRATIC, {"local_steps": 3, "batch_size": 4}
    result = train(problem, case.make(), engine, **work, **extra)
    same_run(result, expected(case, problem, **work, **extra))
    assert np.abs(result.params.numpy() - expected(case, problem, **work).xs[-1]).max() > 1e-3


def test_default_weights_are_importances_within_the_cohort(engine):
    """p_i/Σ_S p, a client named twice counting once."""
    plain = case("FedAvg", 1, 1)
    result = train(QUADRATIC, plain.make(), engine, fm.FixedCohorts(COHORTS), local_steps=2)
    same_run(result, expected(plain, QUADRATIC, weights=None, local_steps=2))


@pytest.mark.parametrize("i", range(len(reference.SIZES)))
def test_batches(i):
    """Steps draw min(B, n_i) different samples each; epochs are shuffled passes whose short last batch is kept;
    `first_batch` has a stream of its own; no two rounds are alike."""
    n, B = QUADRATIC.n[i], 4
    steps = [replayed(QUADRATIC, local_steps=3, batch_size=B)(t, i) for t in range(30)]
    drawn = [[rows(batches.step(k)) for k in range(3)] for batches in steps]
    assert all(len(b) == len(set(b)) == min(B, n) and set(b) <= set(range(n)) for b in itertools.chain(*drawn))
    assert {j for b in itertools.chain(*drawn) for j in b} == set(range(n))
    assert len({str(b) for b in drawn}) > 20
    assert [rows(batches.first(B)) for batches in steps] != [b[0] for b in drawn]
    epochs = replayed(QUADRATIC, local_epochs=3, batch_size=B)(0, i)
    passes = np.split(np.concatenate([rows(epochs.step(k)) for k in range(3 * -(-n // B))]), 3)
    assert all(sorted(p) == list(range(n)) for p in passes)
    assert len(rows(epochs.step(-(-n // B) - 1))) == (n % B or B)


# ------------------------------------------------------------------------------------------ identities


@dataclass(frozen=True, kw_only=True)
class WithoutDifference(fm.Algorithm):
    """FedMoS with a = 1 as a user would write it: full gradient first, then plain mini-batch gradients."""

    lr: float
    mu: float
    beta: float
    server_state = ("v",)

    def step(self, y, s, c, grad, k):
        return y - c.lr * (grad(y) if k else grad.full(y)) - self.mu * (y - c.x), s

    def server(self, x, state, agg, ctx):
        v = self.beta * state["v"] - agg["A"]
        return x - v, {"v": v}


SETTINGS = {  # problem, selection, local work
    "any": (LOGISTIC, fm.FixedCohorts(COHORTS, WEIGHTS), {"local_epochs": 1, "batch_size": 4}),
    "Σw=1": (LOGISTIC, fm.FixedCohorts(COHORTS), {"local_steps": 3, "batch_size": 4}),
    "everyone": (LOGISTIC, fm.FixedCohorts([range(7)]), {"local_steps": 3, "batch_size": 4}),
    "full": (LOGISTIC, fm.FixedCohorts(COHORTS, WEIGHTS), {"local_steps": 4}),
    "K=1": (LOGISTIC, fm.FixedCohorts(COHORTS, WEIGHTS), {"local_steps": 1, "batch_size": 4}),
    "full K=1": (LOGISTIC, fm.FixedCohorts(COHORTS, WEIGHTS), {"local_steps": 1}),
    "one client": (logistic((9,), (1,)), fm.FixedCohorts([[0]]), {"local_steps": 3, "batch_size": 4}),
    "one client, full": (logistic((9,), (1,)), fm.FixedCohorts([[0]]), {"local_steps": 4}),
}


def avg() -> fm.FedAvg:
    return fm.FedAvg(lr=LR)


IDENTITIES = {  # name: where it holds, and two algorithms that are one there
    "FedProx μ=0 is FedAvg": ("any", lambda: fm.FedProx(lr=LR, mu=0), avg),
    "FedAvgM β=0 is FedAvg": ("any", lambda: fm.FedAvgM(lr=LR, beta=0), avg),
    "FedCM α=1 is FedAvg": ("any", lambda: fm.FedCM(lr=LR, alpha=1), avg),
    "FedADC β=β_l=0 is FedAvg": ("any", lambda: fm.FedADC(lr=LR, beta=0, beta_local=0), avg),
    "AdaBest μ=β=0 is FedAvg": ("any", lambda: fm.AdaBest(lr=LR, mu=0, beta=0), avg),
    "MimeLite β=0 is FedAvg": ("any", lambda: fm.MimeLite(lr=LR, beta=0), avg),
    "GHBM β=0 is FedAvg": ("any", lambda: fm.GHBM(lr=LR, beta=0), avg),
    "LocalGHBM β=0 is FedAvg": ("any", lambda: fm.LocalGHBM(lr=LR, beta=0), avg),
    "FedHBM β=0 is FedAvg": ("any", lambda: fm.FedHBM(lr=LR, beta=0), avg),
    "FedCM is GHBM": (
        "Σw=1",
        lambda: fm.FedCM(lr=LR, alpha=0.3),
        lambda: fm.GHBM(lr=0.3 * LR, beta=0.7, tau=1),
    ),
    "FedADC β=β_l is GHBM": (
        "any",
        lambda: fm.FedADC(lr=LR, beta=0.6, beta_local=0.6),
        lambda: fm.GHBM(lr=LR, beta=0.6, tau=1),
    ),
    "FedADC β_l=0 is FedAvgM": (
        "any",
        lambda: fm.FedADC(lr=LR, beta=0.6, beta_local=0, server_lr=0.7),
        lambda: fm.FedAvgM(lr=LR, beta=0.6, server_lr=0.7),
    ),
    "GHBM τ=1 starts alike": (
        "any",
        lambda: fm.GHBM(lr=LR, beta=0.6, tau=1),
        lambda: fm.GHBM(lr=LR, beta=0.6, tau=1, start="x0"),
    ),
    "LocalGHBM with everyone is GHBM": (
        "everyone",
        lambda: fm.LocalGHBM(lr=LR, beta=0.6),
        lambda: fm.GHBM(lr=LR, beta=0.6, tau=1),
    ),
    "LocalGHBM with everyone has one scale and one start": (
        "everyone",
        lambda: fm.LocalGHBM(lr=LR, beta=0.6, scale="participation", first="zero"),
        lambda: fm.LocalGHBM(lr=LR, beta=0.6, scale="elapsed", first="shared"),
    ),
    "FedHBM with everyone has one scale": (
        "everyone",
        lambda: fm.FedHBM(lr=LR, beta=0.6, scale="participation"),
        lambda: fm.FedHBM(lr=LR, beta=0.6, scale="elapsed"),
    ),
    "FedMoS a=1 has no difference term": (
        "any",
        lambda: fm.FedMoS(lr=LR, a=1, mu=0.05, beta=0.5),
        lambda: WithoutDifference(lr=LR, mu=0.05, beta=0.5),
    ),
    "FedMoS a=μ=β=0 is FedLomo": ("any", lambda: fm.FedMoS(lr=LR, a=0, mu=0, beta=0), lambda: fm.FedLomo(lr=LR)),
    "… with a first batch, too": (
        "any",
        lambda: fm.FedMoS(lr=LR, a=0, mu=0, beta=0, first_batch=3),
        lambda: fm.FedLomo(lr=LR, first_batch=3),
    ),
    "a first batch of all samples is full": (
        "any",
        lambda: fm.FedMoS(lr=LR, first_batch=12),
        lambda: fm.FedMoS(lr=LR, first_batch="full"),
    ),
    "full-batch FedMoS does not see a": ("full", lambda: fm.FedMoS(lr=LR, a=0), lambda: fm.FedMoS(lr=LR, a=0.7)),
    "full-batch FedMoS β=0 is FedProx μ/η": (
        "full",
        lambda: fm.FedMoS(lr=LR, mu=0.05, beta=0),
        lambda: fm.FedProx(lr=LR, mu=0.05 / LR),
    ),
    "full-batch FedMoS μ=0 is FedAvgM": (
        "full",
        lambda: fm.FedMoS(lr=LR, mu=0, beta=0.6),
        lambda: fm.FedAvgM(lr=LR, beta=0.6),
    ),
    "full-batch FedLomo is FedAvg": ("full", lambda: fm.FedLomo(lr=LR), avg),
    "Scaffold's options agree for one full step": (
        "full K=1",
        lambda: fm.Scaffold(lr=LR, option=1),
        lambda: fm.Scaffold(lr=LR, option=2),
    ),
    "Mime is FedAvg for one full step": ("full K=1", lambda: fm.Mime(lr=LR), avg),
    "FedLomo is Mime for one step": ("K=1", lambda: fm.FedLomo(lr=LR), lambda: fm.Mime(lr=LR)),
    "MimeLite is Mime for one full step": (
        "full K=1",
        lambda: fm.MimeLite(lr=LR, beta=0.6),
        lambda: fm.Mime(lr=LR, beta=0.6),
    ),
    "Scaffold of one client is FedAvg": ("one client", lambda: fm.Scaffold(lr=LR), avg),
    "… with option 1, too": ("one client", lambda: fm.Scaffold(lr=LR, option=1), avg),
    "Mime of one client is FedAvg": ("one client, full", lambda: fm.Mime(lr=LR), avg),
    "Stem of one client is FedAvg": ("one client, full", lambda: fm.Stem(lr=LR, a=0.4), avg),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identity(name, engine):
    """Two names for one method give one trajectory."""
    where, left, right = IDENTITIES[name]
    problem, selection, work = SETTINGS[where]
    a, b = (train(problem, make(), engine, selection, **work).params for make in (left, right))
    close(a, b, 1e-12)
    assert (a - torch.tensor(problem.x0)).abs().max() > 1e-2


def test_fedmos_without_momenta_is_gradient_descent(engine):
    """β = μ = 0, one full step: x −= η Σ w_i ∇f_i(x)."""
    problem = QUADRATIC
    x = problem.x0
    for cohort, weights in itertools.islice(itertools.cycle(zip(COHORTS, WEIGHTS, strict=True)), ROUNDS):
        x = x - LR * sum(w * problem.gradient(i, x) for i, w in zip(cohort, weights, strict=True))
    close(train(problem, fm.FedMoS(lr=LR, beta=0, mu=0), engine, local_steps=1).params, x, 1e-12)


# --------------------------------------------------------------------------------------------- theorems


@dataclass
class Log:
    """What passed through an algorithm's hands. Clients are told apart by their importance."""

    problem: Problem
    x: dict[int, torch.Tensor] = field(default_factory=dict)
    """By round."""
    message: dict[int, dict] = field(default_factory=dict)
    prepared: dict[tuple[int, int], dict] = field(default_factory=dict)
    """By round and client."""
    uploads: dict[tuple[int, int], dict] = field(default_factory=dict)
    gradients: dict[tuple[int, int], list] = field(default_factory=lambda: defaultdict(list))
    scratch: dict[tuple[int, int], list] = field(default_factory=lambda: defaultdict(list))

    def by_client(self, c: fm.ClientContext, vectors: dict[str, torch.Tensor]):
        """Each client of a chunk, with its rows of what it sent or computed."""
        for row, p in enumerate(c.p.flatten().tolist()):
            i = int(np.flatnonzero(self.problem.p == p)[0])
            yield (c.t, i), {name: torch.atleast_2d(v).expand(c.p.numel(), -1)[row] for name, v in vectors.items()}


def spied(algorithm: fm.Algorithm, log: Log, answer: dict[int, dict] | None = None) -> fm.Algorithm:
    """The same algorithm, noting in `log` what it sees; `answer` replaces the server's messages of some rounds."""

    class Listener:
        def __init__(self, grad, c):
            self.grad, self.c = grad, c
            self.full, self.batch = grad.full, grad.batch

        def __call__(self, y):
            g = self.grad(y)
            for key, row in log.by_client(self.c, {"g": g}):
                log.gradients[key].append(row["g"].numpy())
            return g

    class Spy(type(algorithm)):
        def prepare(self, c, grad):
            sent = super().prepare(c, grad)
            log.prepared.update(log.by_client(c, sent))
            return sent

        def broadcast(self, x, state, ctx):
            log.x[ctx.t], log.message[ctx.t] = x, super().broadcast(x, state, ctx)
            return (answer or log.message).get(ctx.t, log.message[ctx.t])

        def step(self, y, s, c, grad, k):
            y, s = super().step(y, s, c, Listener(grad, c), k)
            for key, row in log.by_client(c, s):
                log.scratch[key].append(row)
            return y, s

        def finish(self, y, s, c, grad):
            sent, own = super().finish(y, s, c, grad)
            log.uploads.update(log.by_client(c, sent))
            return sent, own

    return Spy(**{f.name: getattr(algorithm, f.name) for f in fields(algorithm)})


def cohort_weights(problem: Problem, t: int) -> dict[int, float]:
    """Those of `FixedCohorts(COHORTS)`, which sum to one."""
    S = sorted(set(COHORTS[t % len(COHORTS)]))
    return {i: problem.p[i] / problem.p[S].sum() for i in S}


def test_fedcm_lemma_4_1(engine):
    """D_{t+1} = α (mean of all local gradients) + (1−α) D_t."""
    problem, alpha = LOGISTIC, 0.3
    log = Log(problem)
    result = train(
        problem, spied(fm.FedCM(lr=LR, alpha=alpha), log), engine, fm.FixedCohorts(COHORTS), local_steps=3, batch_size=4
    )
    D = [log.message[t]["D"].numpy() for t in range(ROUNDS)] + [result.server_state["D"].numpy()]
    for t in range(ROUNDS):
        mean = sum(w * np.mean(log.gradients[t, i], axis=0) for i, w in cohort_weights(problem, t).items())
        close(D[t + 1], alpha * mean + (1 - alpha) * D[t], 1e-12)


@pytest.mark.parametrize("K", [1, 3])
def test_ghbm_lemma_b_2(K, engine):
    """With x_{t−τ} = x_0 while t < τ, GHBM is m_t = (β/τ) Σ_{k=1…τ} m_{t−k} + g_t, x −= η m_t, from m = 0, where g_t
    is the cohort's summed gradient. Starting from zero instead is another trajectory."""
    problem, beta, tau = QUADRATIC, 0.6, 3
    selection, log = fm.FixedCohorts(COHORTS), Log(problem)
    algorithm = fm.GHBM(lr=LR, beta=beta, tau=tau, start="x0")
    result = train(problem, spied(algorithm, log), engine, selection, local_steps=K)
    x, m = problem.x0, [0 * problem.x0] * tau
    for t in range(ROUNDS):
        g = sum(w * np.sum(log.gradients[t, i], axis=0) for i, w in cohort_weights(problem, t).items())
        m.append(beta / tau * sum(m[-tau:]) + g)
        x = x - LR * m[-1]
    close(result.params, x, 1e-12)
    other = train(problem, fm.GHBM(lr=LR, beta=beta, tau=tau, start="zero"), engine, selection, local_steps=K)
    assert (result.params - other.params).abs().max() > 1e-3


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_variates_are_gradients(option, engine):
    """With one full step c_i is ∇f_i at the model client i last received, whatever the option."""
    problem, log = QUADRATIC, Log(QUADRATIC)
    result = train(problem, spied(fm.Scaffold(lr=LR, option=option), log), engine, local_steps=1)
    for i in range(6):
        close(result.client_state(i)["c_i"], problem.gradient(i, log.x[int(result.last[i])].numpy()), 1e-12)


@pytest.mark.parametrize(
    ("make", "server", "client"),
    [
        (lambda: fm.Scaffold(lr=LR, option=1), "c", "c_i"),
        (lambda: fm.Scaffold(lr=LR, option=2), "c", "c_i"),
        (lambda: fm.FedDyn(lr=LR, alpha=0.3), "h", "lambda_i"),
    ],
)
def test_server_variate_is_the_mean_of_the_clients(make, server, client, engine):
    """c = Σ p_i c_i over all clients, at any time and for any cohorts; for FedDyn h = Σ p_i λ_i."""
    problem = LOGISTIC
    result = train(problem, make(), engine, local_epochs=1, batch_size=4)
    mean = sum(problem.p[i] * result.client_state(i)[client] for i in range(6))
    close(result.server_state[server], mean, 1e-12)


HETEROGENEOUS = quadratic(sizes=(5, 9, 3, 4), importance=(0.55, 0.05, 0.3, 0.1), size=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fm.Scaffold(lr=0.25, option=1),
        lambda: fm.Scaffold(lr=0.25, option=2),
        lambda: fm.FedDyn(lr=0.25, alpha=1.0),
        lambda: fm.Mime(lr=0.25),
    ],
    ids=["Scaffold 1", "Scaffold 2", "FedDyn", "Mime"],
)
def test_drift_is_corrected(make, engine):
    """With everyone, full batches and K > 1, these reach the minimum of Σ p_i f_i …"""
    result = train(HETEROGENEOUS, make(), engine, fm.Full(), rounds=60, local_steps=3)
    close(result.params, HETEROGENEOUS.optimum(), 1e-6)


def test_drift_is_there(engine):
    """… and FedAvg does not: it settles where Σ p_i (1 − (1−ηH_i)^K) (x − e_i) = 0."""
    result = train(HETEROGENEOUS, fm.FedAvg(lr=0.25), engine, fm.Full(), rounds=60, local_steps=3)
    close(result.params, HETEROGENEOUS.optimum(lambda H: 1 - (1 - 0.25 * H) ** 3), 1e-10)
    assert np.abs(result.params.numpy() - HETEROGENEOUS.optimum()).max() > 1e-2


def test_fedmos_equations_4_and_20(engine):
    """(20), δ = new − old: Σ w_i δ_i = −η Σ_k (1−μ)^{K−1−k} Σ w_i d_{i,k}.
    (4): u = β u − Σ w_i δ_i/(ηK) and x −= ηK u make the same run, with v = ηK u."""
    problem, mu, beta, K = LOGISTIC, 0.2, 0.5, 4
    log = Log(problem)
    algorithm = spied(fm.FedMoS(lr=LR, a=0.3, mu=mu, beta=beta), log)
    result = train(problem, algorithm, engine, fm.FixedCohorts(COHORTS), local_steps=K, batch_size=4)
    x, u = problem.x0, 0 * problem.x0
    for t in range(ROUNDS):
        w = cohort_weights(problem, t)
        update = sum(w[i] * log.uploads[t, i]["delta"].numpy() for i in w)
        d = [sum(w[i] * log.scratch[t, i][k]["d"].numpy() for i in w) for k in range(K)]
        close(update, -LR * sum((1 - mu) ** (K - 1 - k) * d[k] for k in range(K)), 1e-12)
        u = beta * u - update / (LR * K)
        x = x - LR * K * u
    close(result.params, x, 1e-12)
    close(result.server_state["v"], LR * K * u, 1e-12)


# ------------------------------------------------------------------------------------------ the contract

EPOCHS = {"local_epochs": 1, "batch_size": 4}


def fingerprint(*tensors: torch.Tensor | None) -> str:
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors if t is not None)).hexdigest()


@each_class
def test_the_callers_model_and_data_stay_untouched(case, engine):
    problem = LOGISTIC
    model, data = problem.model().eval(), problem.data()

    def state():
        parts = (*model.parameters(), data.x, data.y, data.importance, data.offsets)
        return fingerprint(*parts), model.training, [p.grad for p in model.parameters()], torch.get_rng_state().tolist()

    before = state()
    run = {"rounds": 3, "device": "cpu", "dtype": torch.float64, "engine": engine} | EPOCHS
    result = fm.run(model, data, case.make(), fm.Uniform(m=3), **run)
    assert state() == before
    assert fingerprint(*result.model.parameters()) != fingerprint(*model.parameters())


@each_class
def test_a_clients_data_reach_the_others_through_the_server_only(case, engine):
    """Client 4 joins in round 2. Other data there change what it sends; what the others send, given the same message
    of the server, stays the same to the last bit."""
    problem, script = LOGISTIC, fm.FixedCohorts([(0, 1, 2), (1, 3), (0, 1, 3, 4, 5)])
    before, after = Log(problem), Log(problem)
    train(problem, spied(case.make(), before), engine, script, rounds=3, **EPOCHS)
    train(problem.changed(4), spied(case.make(), after, before.message), engine, script, rounds=3, **EPOCHS)
    for old, new in ((before.uploads, after.uploads), (before.prepared, after.prepared)):
        assert old.keys() == new.keys()
        for t, i in old:
            alike = [torch.equal(old[t, i][name], new[t, i][name]) for name in old[t, i]]
            assert alike == [i != 4] * len(alike), (t, i)


@each_class
def test_the_order_of_a_cohort_means_nothing(case, engine):
    def mirrored(lists):
        return [tuple(reversed(row)) for row in lists]

    problem = LOGISTIC
    a = train(problem, case.make(), engine, rounds=7, **EPOCHS)
    b = train(problem, case.make(), engine, fm.FixedCohorts(mirrored(COHORTS), mirrored(WEIGHTS)), rounds=7, **EPOCHS)
    assert torch.equal(a.params, b.params)
    assert all(torch.equal(v, b.server_state[name]) for name, v in a.server_state.items())
    assert all(torch.equal(v, b.client_state(i)[name]) for i in range(6) for name, v in a.client_state(i).items())


@each_class
def test_bytes_are_those_of_the_vectors_handed_over(case, engine):
    """The history counts what was sent, which is what the algorithm table says."""
    problem = LOGISTIC
    log = Log(problem)
    result = train(problem, spied(case.make(), log), engine, rounds=4, **EPOCHS)

    def size(vectors):
        return sum(v.nbytes for v in vectors.values())

    for record in result.history:
        t, M = record.round - 1, len(record.cohort)
        assert record.bytes_down == M * (log.x[t].nbytes + size(log.message[t]))
        assert record.bytes_up == sum(
            size(sent.get((t, i), {})) for sent in (log.uploads, log.prepared) for i in record.cohort
        )
        down, up = case.wire
        up += case.name == "Stem" and t == 0
        assert (record.bytes_down, record.bytes_up) == (M * down * 15 * 8, M * up * 15 * 8)


@each_class
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_engines_agree(case, dtype, tolerance, digits):
    """Loop and batched part by rounding only, over twenty rounds of a convolutional network."""
    loop, batched = (
        fm.run(
            fm.models.cnn_digits(),
            digits,
            case.make(lr=0.02),
            fm.Uniform(m=2, weights="cohort"),
            rounds=20,
            local_steps=2,
            batch_size=5,
            eval_every=20,
            device=device,
            dtype=dtype,
            engine=engine,
        ).params
        for engine, device in (("loop", "cpu"), ("batched", DEVICE))
    )
    assert (loop - batched).norm() <= tolerance * loop.norm()


def test_local_ghbm_is_ghbm_where_clients_take_turns(engine):
    """With cohorts in a fixed cycle of N/|S| = τ rounds, the model a client received last time is x_{t−τ}."""
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=6, seed=0)
    runs = [
        fm.run(
            fm.models.logistic(features=64),
            data,
            algorithm,
            fm.FixedCohorts([[0, 1], [2, 3], [4, 5]]),
            rounds=9,
            local_steps=2,
            batch_size=8,
            dtype=torch.float64,
            engine=engine,
        ).params
        for algorithm in (fm.LocalGHBM(lr=0.1, beta=0.7), fm.GHBM(lr=0.1, beta=0.7, tau=3))
    ]
    assert torch.allclose(*runs, rtol=0, atol=1e-13)
