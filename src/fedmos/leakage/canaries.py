"""Canary exposure: samples with a random wrong label, planted at clients, and what the model memorises of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..algorithm import Algorithm
from ..core.validation import Rule, check, count, none, require, whole_number
from ..data.federated import FederatedData
from ..rng import Purpose, generator
from ..run.api import run
from ..run.result import Result
from ..selection.selector import Selector
from .membership import labelled_test, rank_test, sample_losses


@dataclass(frozen=True)
class Exposure:
    """How much a model reveals of planted samples (Carlini et al., USENIX Security 2019).

    The exposure of a canary is log2(R + 1) − log2(rank) bits, where rank is the place of its loss among those of R
    references: samples made alike, but not trained on. An unknown canary has any place with the same probability.

    Example:
        >>> found = fm.leakage.Exposure(exposures=(4.4, 1.0), references=20, auc=0.8, p_value=0.02)
        >>> found.mean
        2.7
    """

    exposures: tuple[float, ...]
    """The exposure of each canary, in bits."""
    references: int
    auc: float
    """The probability that a canary has a smaller loss than a reference; 0.5 if the model reveals nothing."""
    p_value: float
    """The probability of such an AUC or a larger one if the model reveals nothing (Mann-Whitney test)."""

    @property
    def mean(self) -> float:
        """The mean exposure, in bits."""
        return sum(self.exposures) / len(self.exposures)

    @property
    def most(self) -> float:
        """The exposure of a canary whose loss is below that of all references, in bits."""
        return math.log2(self.references + 1)

    @property
    def expected(self) -> float:
        """The expected exposure of a canary that no client has, in bits: about 1.44."""
        return self.most - math.lgamma(self.references + 2) / math.log(2) / (self.references + 1)


class _Planted(NamedTuple):
    """The canaries and references of a federation."""

    x: Tensor
    y: Tensor
    """Wrong labels; the canaries come first."""
    clients: NDArray[np.int64]
    """The client of each canary."""


@dataclass(frozen=True)
class Canaries:
    """Samples with a random wrong label, to plant at clients before training.

    Their inputs are test samples. The same seed gives the same canaries, so runs with and without privacy can be
    compared.

    Args:
        count: The number of canaries, at as many clients where there are enough.
        references: The number of samples made alike that no client trains on.
        copies: How often a client has its canary among its samples.
        seed: Seed of the draw of inputs, labels and clients.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> canaries = fm.leakage.Canaries(4, references=20)
        >>> planted = canaries.plant(data)
        >>> result = fm.run(model, planted, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=8)
        >>> len(canaries.exposure(result, data).exposures)
        4
    """

    count: int = 20
    references: int = 256
    copies: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check(self, count=count, references=count, copies=count, seed=whole_number)

    def plant(self, data: FederatedData) -> FederatedData:
        """Return the federation in which clients have canaries. Importances stay as they are.

        Args:
            data: A federation with class labels and a test set, from which the inputs of canaries are taken.

        Raises:
            ValueError: If the data have no class labels, or too few test samples.
        """
        canaries = self._draw(data)
        own = {
            i: [len(data.y) + j for j in np.flatnonzero(canaries.clients == i) for _ in range(self.copies)]
            for i in range(len(data))
        }
        index = torch.arange(int(data.offsets[-1])) if data.index is None else data.index
        parts = [
            torch.cat([index[data.offsets[i] : data.offsets[i + 1]], torch.tensor(own[i], dtype=index.dtype)])
            for i in range(len(data))
        ]
        sizes = torch.tensor([len(part) for part in parts])
        return replace(
            data,
            x=torch.cat([data.x, canaries.x[: self.count].to(data.x.dtype)]),
            y=torch.cat([data.y, canaries.y[: self.count].to(data.y.dtype)]),
            index=torch.cat(parts),
            offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).to(data.offsets.dtype),
        )

    def exposure(self, result: Result, data: FederatedData) -> Exposure:
        """Return how much the final model of a run reveals of the canaries.

        Args:
            result: The result of a run on `plant(data)`.
            data: The federation without canaries.

        Raises:
            ValueError: If the data have no class labels, or too few test samples.
        """
        canaries = self._draw(data)
        losses = sample_losses(result, canaries.x, canaries.y)
        planted, others = losses[: self.count], losses[self.count :]
        ranks = 1 + np.sort(others).searchsorted(planted, "left")
        bits = math.log2(len(others) + 1) - np.log2(ranks)
        return Exposure(tuple(bits.tolist()), len(others), *rank_test(planted, others))

    def _draw(self, data: FederatedData) -> _Planted:
        x, y = labelled_test("canaries", data)
        needed = self.count + self.references
        if len(y) < needed:
            raise ValueError(
                f"Cannot make {self.count} canaries and {self.references} references of {len(y)} test samples; use "
                "fewer"
            )
        draw = generator(self.seed, Purpose.DIAGNOSTICS)
        chosen = torch.from_numpy(draw.permutation(len(y))[:needed])
        classes = int(max(data.y.max(), y.max())) + 1
        if classes < 2:
            raise ValueError("Cannot plant canaries because the data have one class, so no label is wrong; use others")
        wrong = (y[chosen] + torch.from_numpy(draw.integers(1, classes, needed))) % classes
        clients = np.resize(draw.permutation(len(data)), self.count)
        return _Planted(x[chosen], wrong.to(y.dtype), clients)


def canary_exposure(
    model: nn.Module,
    data: FederatedData,
    algorithm: Algorithm,
    selection: Selector,
    *,
    canaries: Canaries | None = None,
    **options: Any,
) -> Exposure:
    """Train with planted samples and return how much the final model reveals of them.

    Args:
        model: As in `fm.run`.
        data: A federation with class labels and a test set.
        algorithm: As in `fm.run`.
        selection: As in `fm.run`.
        canaries: What is planted (default: `Canaries()`).
        options: Other arguments of `fm.run`, for example `privacy`.

    Raises:
        ValueError: If the data have no class labels, or too few test samples.

    Example:
        >>> canaries = fm.leakage.Canaries(4, references=20)
        >>> how = {"rounds": 2, "local_steps": 2, "batch_size": 8, "canaries": canaries}
        >>> fm.leakage.canary_exposure(model, data, fm.FedAvg(lr=0.1), fm.Full(), **how).references
        20
    """
    require("canary_exposure", "canaries", canaries, Rule("Canaries(…)", lambda v: isinstance(v, Canaries)) | none)
    canaries = Canaries() if canaries is None else canaries
    return canaries.exposure(run(model, canaries.plant(data), algorithm, selection, **options), data)
