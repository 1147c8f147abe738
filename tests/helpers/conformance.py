"""Every algorithm with settings, and a run of it beside the same run by the reference equations."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

import fedmos as fm
from helpers import reference, reference_personal, reference_recent
from helpers.problems import Problem, logistic, quadratic

LR, SEED, ROUNDS = 0.08, 5, 9
QUADRATIC, LOGISTIC = quadratic(), logistic()


# Client 6 never takes part, client 1 is drawn twice in round 2, round 1 has a cohort of one, and nothing sums to one.
COHORTS = [(0, 3, 1), (2,), (4, 1, 1, 5), (3, 0), (5, 2, 4, 1, 0), (1,), (3, 5)]
WEIGHTS = [(0.5, 0.2, 0.1), (0.9,), (0.3, 0.15, 0.1, 0.6), (0.45, 0.8), (0.1, 0.3, 0.2, 0.25, 0.3), (0.7,), (0.4, 0.5)]
DEVICE = os.environ.get("FEDMOS_TEST_DEVICE", "cpu")
"""`make test-gpu` runs the tests of algorithms with "cuda"."""


@dataclass(frozen=True)
class Case:
    """A configuration: the library's class of that name, and the recursion of that name in the reference modules."""

    name: str
    wire: tuple[int, int]
    """Vectors down and up per client and round."""
    fields: dict[str, Any] = field(default_factory=dict)
    numbers: int = 0
    """Single numbers up per client and round, besides the vectors."""

    def make(self, lr: float = LR) -> fm.Algorithm:
        return getattr(fm, self.name)(lr=lr, **self.fields)

    @property
    def rounds(self) -> int:
        """More than GHBM's default τ = 10 where that is used."""
        return 12 if self.name == "GHBM" and "tau" not in self.fields else ROUNDS

    @property
    def recursion(self) -> Callable:
        name = self.name.lower()
        modules = [reference, reference_recent, reference_personal]
        return next(found for module in modules if (found := getattr(module, name, None)) is not None)

    def __str__(self) -> str:
        return f"{self.name}({','.join(f'{name}={value}' for name, value in self.fields.items())})"


def case(name: str, down: int, up: int, *, numbers: int = 0, **fields: Any) -> Case:
    return Case(name, (down, up), fields, numbers)


CASES = [
    case("FedAvg", 1, 1),
    case("FedAvg", 1, 1, server_lr=0.7),
    case("FedProx", 1, 1, mu=0.3),
    case("FedProx", 1, 1, mu=1.5, server_lr=0.7),
    case("FedAvgM", 1, 1),
    case("FedAvgM", 1, 1, beta=0.6, server_lr=0.7),
    case("FedAvgM", 1, 1, beta=0.6, server_lr=0.7, nesterov=True),
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
    case("FedNova", 1, 1, numbers=1, server_lr=0.7),
    case("FedExP", 1, 1, numbers=1, eps=0.1, average=True),
    case("FedAvgMom", 2, 1, beta=0.6, gamma=0.2),
    case("ScaffoldM", 3, 2, beta=0.3),
    case("FedGamma", 2, 2, rho=0.3, server_lr=0.7),
    case("FedSpeed", 1, 1, lam=0.5, rho=0.3),
    case("FedSMOO", 2, 2, lam=0.5, rho=0.3),
    case("FedLESAM", 1, 1, rho=0.3, server_lr=0.7),
    case("FedACG", 1, 1, lam=0.5, beta=0.6),
    case("FedSWA", 1, 1, rho=0.5, alpha=0.7),
    case("FedInit", 1, 1, beta=0.6, server_lr=0.7),
    case("Ditto", 1, 1, lam=0.5, server_lr=0.7),
    case("APFL", 1, 1, alpha=0.3, server_lr=0.7),
    case("APFL", 1, 1, alpha=0.3, adaptive=False),
    case("PFedMe", 1, 1, lam=3.0, inner_lr=0.1, inner_steps=3, beta=0.7),
    case("LocalOnly", 0, 0),
]

EACH = list({(c.name, c.wire, c.numbers): c for c in CASES}.values())
"""One of each class and wire."""
SENDING = [c for c in CASES if c.wire[1]]
EACH_SENDING = [c for c in EACH if c.wire[1]]
"""Those whose clients send something."""


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


def close(actual, wanted, tolerance: float = 1e-10, what: str = "") -> None:
    np.testing.assert_allclose(np.asarray(actual), wanted, rtol=tolerance, atol=tolerance, err_msg=what)


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
            self.full, self.batch, self.raw, self.perturbed = grad.full, grad.batch, grad.raw, grad.perturbed

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
