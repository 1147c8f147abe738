"""An asynchronous run in plain Python and NumPy: one event after another, from the definition alone.

Of the library, it uses the random streams only (`fedmos.rng`): for batches, the selection and dropouts.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import fedmos as fm
from fedmos.rng import Purpose, choose, fold, permute, stream, uniform
from helpers.problems import Problem, Vector, quadratic

ITEM = 8
"""Bytes of a number in float64."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A random case: who is how fast, and when the server steps."""

    seed: int
    size: int
    concurrency: int
    staleness: float
    speed: tuple[float, ...]
    down: tuple[float, ...]
    up: tuple[float, ...]
    deadline: float | None
    dropout: float
    present: tuple[tuple[bool, ...], ...]
    """By round, repeated: which clients are available."""
    weights: str
    K: int
    B: int
    lr: float = 0.05
    decay: float = 0.97
    rounds: int = 8

    @property
    def problem(self) -> Problem:
        rng = np.random.default_rng(self.seed)
        N = len(self.speed)
        sizes = [4] * N if self.seed % 5 == 0 else rng.integers(2, 9, N).tolist()
        return quadratic(sizes, rng.uniform(0.5, 1.5, N).tolist(), size=3)


def random_schedule(seed: int) -> Schedule:
    """Return a case. Every fifth has clients of equal speed and size, so that many updates arrive at the same time."""
    rng = np.random.default_rng(seed)
    N = int(rng.integers(3, 10))

    def numbers(scale: float) -> tuple[float, ...]:
        values = np.full(N, scale) if seed % 5 == 0 else scale * np.exp(rng.normal(size=N))
        return tuple(values.tolist())

    limited = seed % 4 == 1
    present = rng.random((6, N)) < (0.7 if seed % 3 == 0 and not limited else 2.0)
    speed, down, up, K, B = (
        numbers(20.0),
        numbers(100.0),
        numbers(60.0),
        int(rng.integers(1, 4)),
        int(rng.integers(1, 5)),
    )
    most = [48 / down[i] + (9 + 2 * K * B) / speed[i] + 48 / up[i] for i in range(N)]
    return Schedule(
        seed=seed,
        size=int(rng.integers(1, N // 2 + 1 if limited else N + 1)),  # updates of clients that are never lost
        concurrency=int(rng.integers(1, N + 1)),
        staleness=float(rng.choice([0.0, 0.5, 1.3])),
        speed=speed,
        down=down,
        up=up,
        deadline=sorted(most)[N // 2] if limited else None,  # half of the clients need less
        dropout=0.2 if seed % 4 > 1 else 0.0,
        present=tuple(tuple(map(bool, row)) for row in present),
        weights=str(rng.choice(["unbiased", "mean"])),
        K=K,
        B=B,
    )


@dataclass(frozen=True)
class Present(fm.Availability):
    """Clients by round, repeated."""

    rows: tuple[tuple[bool, ...], ...]

    def available(self, seed: int, round: int, N: int) -> torch.Tensor:
        return torch.tensor(self.rows[round % len(self.rows)])


def options(case: Schedule) -> dict[str, Any]:
    """The arguments of `fm.run` that the case stands for, without model, data and algorithm."""
    profiles = {name: fm.PerClient(getattr(case, name)) for name in ("speed", "down", "up")}
    return {
        "selection": fm.Uniform(m=1, weights=case.weights),
        "rounds": case.rounds,
        "local_steps": case.K,
        "batch_size": case.B,
        "lr_decay": case.decay,
        "seed": case.seed,
        "system": fm.System(**profiles, deadline=case.deadline, dropout=case.dropout),
        "availability": Present(case.present),
        "buffer": fm.Buffer(size=case.size, concurrency=case.concurrency, staleness=case.staleness),
        "loss": case.problem.loss,
        "dtype": torch.float64,
        "device": "cpu",
        "eval_every": case.rounds,
    }


# ---------------------------------------------------------------------------------------------- methods


@dataclass
class Client:
    """What a client has when it trains."""

    problem: Problem
    case: Schedule
    i: int
    version: int
    last: int
    """The version that it trained from before, −1 for never."""
    x: Vector
    msg: dict[str, Vector]
    lr: float
    own: dict[str, Vector]

    @property
    def K(self) -> int:
        return self.case.K

    def g(self, k: int, y: Vector) -> Vector:
        """The gradient on the batch of step k; batches belong to the version."""
        n, B = self.problem.n[self.i], self.case.B
        key = fold(stream(self.case.seed, self.version, torch.tensor(self.i), Purpose.BATCH), k)
        order = permute(key[None], torch.tensor([n]), n, min(B, n))[0].tolist()
        return self.problem.gradient(self.i, y, order[: min(B, n)])

    def sgd(self, step) -> Vector:
        y = self.x
        for k in range(self.K):
            y = step(k, y)
        return y - self.x


class Method:
    """An algorithm, once more: what is sent, what a client does, what the server does."""

    vectors = (1, 1)
    """Vectors down and up."""

    def __init__(self, problem: Problem, case: Schedule) -> None:
        self.problem, self.case, self.N = problem, case, len(problem)
        self.zero = np.zeros_like(problem.x0)

    def gradients(self, n: int) -> int:
        """Per-sample gradients of a client with n samples."""
        return self.case.K * min(self.case.B, n)

    def message(self, x: Vector, s: dict[str, Vector]) -> dict[str, Vector]:
        return {}

    def client(self, c: Client) -> Vector:
        return c.sgd(lambda k, y: y - c.lr * c.g(k, y))

    def server(self, x: Vector, s: dict[str, Vector], up: dict[int, Vector], w: dict[int, float], lr: float) -> Vector:
        return x + sum(w[i] * up[i] for i in up)


class FedAvg(Method):
    """x += Σ w_i δ_i."""

    algorithm = fm.FedAvg(lr=0.05)


class FedAvgM(Method):
    """m = β m + Σ w_i δ_i;  x += m."""

    algorithm = fm.FedAvgM(lr=0.05, beta=0.6)

    def server(self, x, s, up, w, lr):
        s["m"] = 0.6 * s.get("m", self.zero) + sum(w[i] * up[i] for i in up)
        return x + s["m"]


class Scaffold(Method):
    """y −= η (g(y) − c_i + c);  c_i⁺ = c_i − c − δ_i/(K η);  c += Σ p_i (c_i⁺ − c_i), whatever the age."""

    algorithm = fm.Scaffold(lr=0.05)
    vectors = (2, 2)

    def message(self, x, s):
        return {"c": s.get("c", self.zero)}

    def client(self, c):
        c_i, shared = c.own.get("c_i", self.zero), c.msg["c"]
        delta = c.sgd(lambda k, y: y - c.lr * (c.g(k, y) - c_i + shared))
        c.own["c_i"] = c_i - shared - delta / (c.K * c.lr)
        c.own["change"] = c.own["c_i"] - c_i
        return delta

    def server(self, x, s, up, w, lr):
        s["c"] = s.get("c", self.zero) + sum(self.problem.p[i] * self.own[i]["change"] for i in up)
        return super().server(x, s, up, w, lr)


class FedCM(Method):
    """y −= η (α g(y) + (1−α) D).  D = −Σ w_i δ_i/(η K) / Σ w."""

    algorithm = fm.FedCM(lr=0.05, alpha=0.3)
    vectors = (2, 1)

    def message(self, x, s):
        return {"D": s.get("D", self.zero)}

    def client(self, c):
        return c.sgd(lambda k, y: y - c.lr * (0.3 * c.g(k, y) + 0.7 * c.msg["D"]))

    def server(self, x, s, up, w, lr):
        s["D"] = -sum(w[i] * up[i] for i in up) / (lr * self.case.K) / sum(w.values())
        return super().server(x, s, up, w, lr)


class FedHBM(Method):
    """y −= η g(y), y += (β s_i/K) (y − r_i), s_i = 1/(t − t_i);  r_i = the client's own last local model."""

    algorithm = fm.FedHBM(lr=0.05, beta=0.5, scale="elapsed")

    def client(self, c):
        def step(k, y):
            pull = 0.0 if c.last < 0 else 0.5 / (c.version - c.last) / c.K * (y - c.own["r_i"])
            return y - c.lr * c.g(k, y) + pull

        delta = c.sgd(step)
        c.own["r_i"] = c.x + delta
        return delta


class FedMoS(Method):
    """d_0 = ∇f_i(x);  d = g(y) + (1−a)(d − g(y_prev));  y −= η d + μ (y−x).  v = β v − Σ w_i δ_i;  x −= v."""

    algorithm = fm.FedMoS(lr=0.05, a=0.3, mu=0.05, beta=0.5)

    def gradients(self, n):
        return n + 2 * (self.case.K - 1) * min(self.case.B, n)

    def client(self, c):
        y, y_prev, d = c.x, c.x, self.problem.gradient(c.i, c.x)
        for k in range(c.K):
            if k:
                d = c.g(k, y) + 0.7 * (d - c.g(k, y_prev))
            y, y_prev = y - (c.lr * d + 0.05 * (y - c.x)), y
        return y - c.x

    def server(self, x, s, up, w, lr):
        s["v"] = 0.5 * s.get("v", self.zero) - sum(w[i] * up[i] for i in up)
        return x - s["v"]


METHODS = (FedAvg, FedAvgM, Scaffold, FedCM, FedHBM, FedMoS)


# ----------------------------------------------------------------------------------------------- events


@dataclass
class Step:
    """A server step, as a record has it."""

    cohort: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    time: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0


def simulate(kind: type[Method], case: Schedule) -> tuple[Vector, list[Step], dict[int, dict[str, Vector]]]:
    """Play `case.rounds` server steps; returns the last model, the steps and the state of clients."""
    problem = case.problem
    method, N = kind(problem, case), len(case.speed)
    x, s, own = problem.x0, {}, {i: {} for i in range(N)}
    method.own = own
    last, now, starts, taken, steps = dict.fromkeys(range(N), -1), 0.0, 0, 0, []
    training: list[tuple[float, int]] = []
    sent: dict[int, tuple] = {}
    """By client that trains or whose update waits: round, server steps before it, model, message, weight, lost."""
    waiting: list[int] = []
    for t in range(case.rounds):
        step = Step()
        while True:
            while len(training) < case.concurrency:  # start clients
                here = [i for i in range(N) if case.present[t % len(case.present)][i] and i not in sent]
                if not here:
                    break
                key = stream(case.seed, t, starts + 1, Purpose.SELECT)
                i = here[int(choose(key[None], len(here), 1)[0, 0])]
                p = problem.p[i] / problem.p[here].sum() * len(here)
                lost = uniform(stream(case.seed, starts, torch.tensor([i]), Purpose.LOST)).item() < case.dropout
                down, up = (v * ITEM * len(x) for v in method.vectors)
                seconds = down / case.down[i] + method.gradients(problem.n[i]) / case.speed[i]
                seconds += up * (1 / case.up[i])  # as PyTorch divides a number by a tensor
                if case.deadline is not None and (lost or seconds > case.deadline):
                    lost, seconds = True, case.deadline
                sent[i] = (t, taken, x, method.message(x, s), p if case.weights == "unbiased" else 1.0, lost)
                heapq.heappush(training, (now + seconds, i))
                starts, step.bytes_down = starts + 1, step.bytes_down + down
            if not training:  # nobody trains and nobody can start: the round is abandoned
                break
            now, i = heapq.heappop(training)
            if sent[i][-1]:
                step.late.append(i)
                del sent[i]
                continue
            waiting.append(i)
            step.bytes_up += up
            if len(waiting) == case.size:
                break
        step.time = now
        if len(waiting) == case.size:
            step.cohort = sorted(waiting)
            waiting, uploads, w = [], {}, {}
            for i in step.cohort:
                started, version, model, msg, weight, _ = sent.pop(i)
                lr = case.lr * case.decay**started
                uploads[i] = method.client(Client(problem, case, i, started, last[i], model, msg, lr, own[i]))
                w[i] = weight / case.size * (1 + taken - version) ** -case.staleness
                step.versions.append(version)
                step.ages.append(taken - version)
                last[i] = started
            taken += 1
            step.weights = [w[i] for i in step.cohort]
            x = method.server(x, s, uploads, w, case.lr * case.decay**t)
        steps.append(step)
    return x, steps, own
