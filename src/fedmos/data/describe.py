"""Statistics of a federation: the sizes of clients and the differences between their label distributions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.losses import PADDING
from .bubbles import bubble_chart

if TYPE_CHECKING:
    from .federated import FederatedData

_NAMED = 8
"""The number of clients that a description lists by name."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Differences between the label distributions q_i of clients and q of the federation. Means are over clients."""

    classes: int
    """Number of classes."""
    per_client: float
    """Mean number of classes per client."""
    entropy: float
    """Mean entropy of q_i, in bits; zero if each client has one class."""
    entropy_all: float
    """Entropy of q, in bits; equal to `entropy` if all clients have the same distribution."""
    total_variation: float
    """Mean of ½ Σ_c |q_i(c) − q(c)|: zero if all q_i are equal, near one if each client has one rare class."""
    divergence: float
    """Σ_i p_i KL(q_i ‖ q), in bits, with p_i the client's fraction of the samples: the mutual information of client and
    label."""
    counts: np.ndarray = field(repr=False)
    """Number of samples per client and class, (clients, classes)."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The result of `FederatedData.describe`; `str()` is a table."""

    clients: int
    """Number of clients."""
    samples: int
    """Number of training samples."""
    test_samples: int
    """Number of test samples."""
    sizes: dict[str, float]
    """min, median, mean and max of the n_i, and their Gini coefficient (0: all equal, near 1: one has nearly all)."""
    labels: Labels | None
    """Label statistics; None if targets are not class numbers."""
    names: dict[str, int] | None = None
    """Number of samples of each client by name; None if clients have no names."""
    client_tests: dict[str, float] | None = None
    """Number of test samples that clients have of their own (`samples`), min, median and max over clients, and the
    number of clients without any (`without`); None if none has."""
    unseen: int = 0
    """Number of clients that are set aside from training."""

    def __str__(self) -> str:
        s = self.sizes
        rows = [
            ("clients", f"{self.clients:,}{self._named()}"),
            ("samples", f"{self.samples:,} for training, {self.test_samples:,} for testing"),
            (
                "samples per client",
                f"{s['min']:,.0f} to {s['max']:,.0f}, median {s['median']:,.0f}, gini {s['gini']:.2f}",
            ),
        ]
        if (own := self.client_tests) is not None:
            without = f", {own['without']:,.0f} clients without" if own["without"] else ""
            rows.append(
                (
                    "client tests",
                    f"{own['samples']:,.0f} samples, {own['min']:,.0f} to {own['max']:,.0f} per client, median "
                    f"{own['median']:,.0f}{without}",
                )
            )
        if self.unseen:
            rows.append(("unseen clients", f"{self.unseen:,} more, which are evaluated only"))
        if (labels := self.labels) is not None:
            rows += [
                ("classes", f"{labels.classes}, {labels.per_client:.1f} per client"),
                ("label entropy", f"{labels.entropy:.2f} bits per client, {labels.entropy_all:.2f} overall"),
                ("total variation", f"{labels.total_variation:.2f} from the overall distribution"),
                ("label divergence", f"{labels.divergence:.2f} bits"),
            ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _named(self) -> str:
        """Return the names of the clients and their numbers of samples; of many, the first."""
        if self.names is None:
            return ""
        some = [f"{name} ({n:,})" for name, n in list(self.names.items())[:_NAMED]]
        return ": " + ", ".join(some) + (", …" if len(self.names) > _NAMED else "")

    def plot(self, path: str | os.PathLike[str], most: int = 40) -> None:
        """Write an SVG chart of the number of samples per client and class.

        Args:
            path: The file to write.
            most: Maximum number of clients in the chart; of more, evenly spaced ones are drawn.

        Raises:
            ValueError: If targets are not class numbers, or the name does not end in .svg.
        """
        if Path(path).suffix.lower() != ".svg":
            raise ValueError(f"plot: 'path' must end in .svg, got {os.fspath(path)!r}")
        if self.labels is None:
            raise ValueError("Cannot plot the split because its targets are not class numbers")
        drawn = np.unique(np.linspace(0, self.clients - 1, min(most, self.clients)).astype(np.int64))
        names = None if self.names is None else list(self.names)
        chart = bubble_chart(self.labels.counts[drawn], drawn.tolist(), self.clients, names)
        Path(path).write_text(chart, encoding="utf-8")


def describe(data: FederatedData) -> Description:
    """Return the statistics of a federation."""
    sizes = data.sizes.numpy()
    return Description(
        clients=len(data),
        samples=int(sizes.sum()),
        test_samples=0 if data.test is None else len(data.test[1]),
        sizes={
            "min": float(sizes.min()),
            "median": float(np.median(sizes)),
            "mean": float(sizes.mean()),
            "max": float(sizes.max()),
            "gini": gini(sizes),
        },
        labels=_labels(label_counts(data)) if _has_labels(data) else None,
        names=None if data.names is None else dict(zip(data.names, sizes.tolist(), strict=True)),
        client_tests=_client_tests(data),
        unseen=0 if data.unseen is None else len(data.unseen),
    )


def _client_tests(data: FederatedData) -> dict[str, float] | None:
    if data.tests is None:
        return None
    sizes = data.tests.sizes.numpy()
    statistics = {"min": sizes.min(), "median": np.median(sizes), "max": sizes.max(), "without": (sizes == 0).sum()}
    return {"samples": float(sizes.sum())} | {name: float(v) for name, v in statistics.items()}


def label_counts(data: FederatedData) -> np.ndarray:
    """Return the number of samples per client and class, (clients, classes)."""
    y = (data.y if data.index is None else data.y[data.index]).to("cpu", torch.int64)
    owner = torch.arange(len(data)).repeat_interleave(data.sizes)
    owner, y = owner[y != PADDING], y[y != PADDING]
    classes = len(data.labels) if data.labels is not None else int(data.y.max()) + 1
    if classes > 1000 + len(y):  # sparse class numbers: count only those that occur
        names, y = y.unique(return_inverse=True)
        classes = len(names)
    counts = torch.bincount(owner * classes + y, minlength=len(data) * classes)
    return counts.view(len(data), classes).numpy()


def _has_labels(data: FederatedData) -> bool:
    if data.y.ndim != 1 or data.y.is_floating_point():
        return False
    labels = data.y[data.y != PADDING]
    return len(labels) > 0 and int(labels.min()) >= 0


def _labels(counts: np.ndarray) -> Labels:
    sizes = counts.sum(1).clip(min=1)  # without samples whose label is ignored
    q, overall = counts / sizes[:, None], counts.sum(0) / sizes.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = np.where(q > 0, q * np.log2(q / overall), 0.0).sum(1)
    return Labels(
        classes=counts.shape[1],
        per_client=float((counts > 0).sum(1).mean()),
        entropy=float(_entropy(q).mean()),
        entropy_all=float(_entropy(overall[None])[0]),
        total_variation=float(0.5 * np.abs(q - overall).sum(1).mean()),
        divergence=float(divergence @ (sizes / sizes.sum())),
        counts=counts,
    )


def _entropy(q: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy: np.ndarray = -np.where(q > 0, q * np.log2(q), 0.0).sum(1)
    return entropy + 0.0  # turns −0 into 0


def gini(sizes: np.ndarray) -> float:
    """Return the Gini coefficient: 0 if all sizes are equal, near 1 if one client has nearly all samples."""
    n = np.sort(sizes)
    rank = np.arange(1, len(n) + 1)
    return float(2 * (rank @ n) / (len(n) * n.sum()) - (len(n) + 1) / len(n))
