"""The accuracy of a method's final models on each client's own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..experiments.seed_statistics import MethodResult, trains_alone

_POINTS = 101
_BINS = 20
_MOST = 2000
"""Points of a method in the scatter plot at most."""


class ClientAccuracy(NamedTuple):
    """Accuracy on clients' own data, from the worst client to the best; means over seeds."""

    shares: list[float]
    """The share of clients with a lower accuracy."""
    accuracies: list[float]
    mean: float
    worst_tenth: float
    median: float
    histogram: list[float]
    """The share of clients in each of 20 intervals of accuracies, from 0 to 1."""
    tested: bool
    """Whether the accuracy is on clients' own test samples; otherwise on their training samples."""
    personal: bool
    """Whether the models are clients' own; otherwise it is the global model."""


def client_accuracy(result: MethodResult) -> ClientAccuracy | None:
    """Read the accuracy per client from a method's runs; None if no run has measured it."""
    measured = _measured(result)
    if not measured:
        return None
    shares = np.linspace(0, 1, _POINTS)
    curves = [np.interp(shares, np.linspace(0, 1, len(one["sorted"])), one["sorted"]) for one in measured.values()]
    accuracies = np.mean(curves, axis=0)
    counts = [
        np.histogram(one["sorted"], bins=_BINS, range=(0, 1))[0] / len(one["sorted"]) for one in measured.values()
    ]
    return ClientAccuracy(
        shares=shares.tolist(),
        accuracies=accuracies.tolist(),
        mean=float(np.mean([one["mean"] for one in measured.values()])),
        worst_tenth=float(np.mean([one["worst_tenth"] for one in measured.values()])),
        median=float(accuracies[_POINTS // 2]),
        histogram=np.mean(counts, axis=0).tolist(),
        tested=all(one.get("samples") == "test" for one in measured.values()),
        personal=all(one.get("model") == "personal" for one in measured.values()),
    )


class ClientGains(NamedTuple):
    """Clients' accuracies with a method, and with the one that it is held against."""

    reference: list[float]
    own: list[float]
    better: float
    """The share of clients whose accuracy is higher than with the reference."""
    worse: float


class ClientScatter(NamedTuple):
    """Every method held against one of them, client by client."""

    reference: str
    """The label of that method: local training alone if it is there, otherwise the baseline."""
    alone: bool
    """Whether it is local training alone."""
    methods: list[ClientGains | None]
    """None for the reference, and for a method without clients in common with it."""


def client_scatter(results: Sequence[MethodResult], baseline: str) -> ClientScatter | None:
    """Hold the methods against one of them on clients' own test samples; None if fewer than two have measured that."""
    local = next((result for result in results if _is_local(result)), None)
    reference = local or next((result for result in results if result.label == baseline), None)
    if reference is None:
        return None
    known = _each(reference)
    gains = [None if result is reference else _gains(known, _each(result)) for result in results]
    if all(one is None for one in gains):
        return None
    return ClientScatter(reference.label, local is not None, gains)


def _gains(reference: dict[tuple[int, int], float], own: dict[tuple[int, int], float]) -> ClientGains | None:
    common = sorted(reference.keys() & own.keys())
    if not common:
        return None
    pairs = np.array([(reference[key], own[key]) for key in common])
    drawn = pairs[np.unique(np.linspace(0, len(pairs) - 1, min(_MOST, len(pairs))).round().astype(np.int64))]
    return ClientGains(
        reference=drawn[:, 0].tolist(),
        own=drawn[:, 1].tolist(),
        better=float((pairs[:, 1] > pairs[:, 0]).mean()),
        worse=float((pairs[:, 1] < pairs[:, 0]).mean()),
    )


def _each(result: MethodResult) -> dict[tuple[int, int], float]:
    """Return the accuracy of each client on its own test samples, by seed and client."""
    found: dict[tuple[int, int], float] = {}
    for seed, one in _measured(result).items():
        each = one.get("each", {"ids": [], "accuracies": []})
        found |= {(seed, i): v for i, v in zip(each["ids"], each["accuracies"], strict=True)}
    return found


def _measured(result: MethodResult) -> dict[int, dict[str, Any]]:
    """Return by seed what a run records about accuracies of clients, where it does."""
    found = {seed: info.get("client_accuracy", {}) for seed, info in result.infos.items()}
    return {seed: one for seed, one in found.items() if "sorted" in one}


def _is_local(result: MethodResult) -> bool:
    return any(map(trains_alone, result.infos.values()))
