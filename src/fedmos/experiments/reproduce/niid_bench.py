"""NIID-Bench's splits by labels and by quantity, and its SCAFFOLD and FedNova with local momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ...algorithms import scaffold
from ...core.validation import below_one, check, count, positive
from ...data.partition.split import ClientSplit, check_enough, deal, encode_labels, even, pools_of
from ...rng import Purpose, generator


@dataclass(frozen=True, kw_only=True)
class Labels:
    """NIID-Bench's split "noniid-#labelN": client i has class i, modulo their number, and other classes at random.

    Each class is divided equally among the clients that have it, so that clients differ in size.

    Args:
        classes: Classes per client.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        check(self, classes=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`."""
        rng = generator(seed, Purpose.PARTITION)
        names, label = encode_labels(labels)
        if self.classes > len(names):
            raise ValueError(f"Labels: 'classes' must be ≤ {len(names)}, the number of classes, got {self.classes}")
        held = np.zeros((clients, len(names)), dtype=bool)
        for i, own in enumerate(held):
            first = i % len(names)
            others = np.delete(np.arange(len(names)), first)
            own[[first, *rng.choice(others, self.classes - 1, replace=False)]] = True
        pools = pools_of(label, len(names), rng.permutation(len(labels)))
        counts = np.zeros(held.shape, dtype=np.int64)
        for c, pool in enumerate(pools):
            holders = np.flatnonzero(held[:, c])
            if len(holders):
                counts[holders, c] = even(len(pool), len(holders))
        return deal(pools, counts)


@dataclass(frozen=True, kw_only=True)
class Quantities:
    """NIID-Bench's split "iid-diff-quantity": random parts whose shares of the samples are drawn from Dir(α·1).

    The shares are drawn again until each client has `least` samples.

    Args:
        alpha: Concentration α.
        least: Minimum number of samples per client.
    """

    alpha: float = 0.5
    least: int = 10

    def __post_init__(self) -> None:
        check(self, alpha=positive, least=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`."""
        check_enough("Quantities", len(labels), clients, self.least)
        rng = generator(seed, Purpose.PARTITION)
        order = rng.permutation(len(labels))
        for _ in range(1000):
            shares = rng.dirichlet(np.full(clients, self.alpha)) * len(labels)
            if shares.min() >= self.least:
                ends = np.append(shares.cumsum()[:-1].astype(np.int64), len(labels))
                return ClientSplit(order, np.diff(ends, prepend=0))
        raise ValueError(f"Cannot give {clients} clients {self.least} samples each; use a larger 'alpha'")


@dataclass(frozen=True, kw_only=True)
class Scaffold(scaffold.Scaffold):
    """NIID-Bench's SCAFFOLD (`train_net_scaffold`): momentum of the gradients alone, and c as a plain mean.

    Client: m ← μ m + g(y);  y ← y − η (m − c_i + c);  c_i⁺ = c_i − c − δ_i/(K_i η).
    Server: x ← x + Σ_S w_i δ_i;  c ← c + Σ_S (c_i⁺ − c_i) / N.

    With a local optimiser, Scaffold's momentum would be of g − c_i + c.

    Args:
        momentum: Momentum μ, which begins each round at zero.
    """

    momentum: float = 0.9

    reduce = {"A": ("delta", "w"), "C": ("change", "sum")}

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, momentum=below_one)

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        return {"m": torch.zeros_like(y)}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        m = self.momentum * s["m"] + grad(y)
        return m - c.own["c_i"] + c.msg["c"], {"m": m}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {"c": state["c"] + agg["C"] / ctx.N}


@dataclass(frozen=True, kw_only=True)
class FedNova(Algorithm):
    """NIID-Bench's FedNova (`train_net_fednova`): updates normalised by ‖a_i‖₁ of local momentum.

    Client: as FedAvg with the local optimiser SGD(momentum=μ); uploads δ_i/a_i and
            a_i = (K_i − μ (1 − μ^K_i)/(1 − μ)) / (1 − μ), the sum of the factors of all gradients in δ_i.
    Server: x ← x + Σ_S w_i a_i · Σ_S w_i δ_i/a_i.

    Args:
        lr: Client step size η.
        momentum: The momentum μ of the local optimiser.
    """

    lr: float
    momentum: float = 0.9

    up = ("step", ("a", ()))
    reduce = {"step": ("step", "w"), "a": ("a", "w")}

    def __post_init__(self) -> None:
        check(self, lr=positive, momentum=below_one)

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        mu = self.momentum
        a = (c.K - mu * (1 - mu**c.K) / (1 - mu)) / (1 - mu)
        return {"step": (y - c.x) / a, "a": a}, {}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + agg["a"] * agg["step"], {}
