"""Losses of a whole batch that are not sums over its samples: `fedmos.losses`.

Example:
    >>> loss = fm.losses.Batch(lambda outputs, targets: (outputs[:, 0] - targets).abs().max())
    >>> float(loss(torch.zeros(2, 1), torch.tensor([1.0, 3.0]), torch.ones(2, dtype=torch.bool)))
    3.0
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from .formatting import format_value


class Batch:
    """A loss of the whole batch, e.g. a partial likelihood, a ranking loss or a contrastive loss.

    The vectorised engine pads the batches of clients to one length, so `f` should take a mask: (outputs, targets, mask)
    → loss, where `mask` is True for samples and False for padding. Without a mask, clients are vectorised only where
    all batches have the same size; elsewhere use `engine="loop"`.

    A reported loss is `f` on all data of a client, weighted by the clients' importances, and on the whole test set.

    Args:
        f: (outputs, targets) → loss or (outputs, targets, mask) → loss.

    Raises:
        ValueError: If `f` takes another number of arguments.

    Example:
        >>> def spread(outputs, targets, mask):
        ...     return ((outputs[:, 0] - targets) ** 2).where(mask, 0).sum().sqrt()
        >>> fm.losses.Batch(spread).__name__
        'spread'
    """

    def __init__(self, f: Callable[..., Tensor]) -> None:
        if isinstance(f, type) or not callable(f):
            raise ValueError(f"Batch: 'f' must be a function of (outputs, targets, mask), got {format_value(f)}")
        count = _positional_arguments(f)
        if count not in (2, 3):
            raise ValueError(f"Batch: 'f' must take (outputs, targets) or (outputs, targets, mask), got {count} values")
        self.f = f
        self.masked = count == 3
        """Whether `f` takes a mask."""
        self.__name__ = getattr(f, "__name__", type(f).__name__)

    def __call__(self, outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        value: Tensor = self.f(outputs, targets, mask) if self.masked else self.f(outputs, targets)
        return value.reshape(())


class Cox(Batch):
    """The negative partial log-likelihood of Cox's proportional-hazards model, with Breslow's handling of ties.

    Outputs are one log hazard per sample, (B,) or (B, 1). Targets are (B, 2): the time, and 1 for an event or 0 for a
    censored sample. A batch without an event has the loss 0. The metric that goes with it is `fm.metrics.CIndex`.

    Args:
        over: What the sum over the events of a batch is divided by: the number of "events", or that of all "samples",
            so that batches with few events count less, as in FLamby.

    Raises:
        ValueError: If `over` is neither.

    Example:
        >>> targets = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
        >>> mask = torch.ones(2, dtype=torch.bool)
        >>> round(float(fm.losses.Cox()(torch.zeros(2, 1), targets, mask)), 4)
        0.6931
        >>> round(float(fm.losses.Cox(over="samples")(torch.zeros(2, 1), targets, mask)), 4)
        0.3466
    """

    def __init__(self, over: Literal["events", "samples"] = "events") -> None:
        if over not in ("events", "samples"):
            raise ValueError(f"Cox: 'over' must be 'events' or 'samples', got {over!r}")
        super().__init__(_cox_over_events if over == "events" else _cox_over_samples)
        self.over = over
        self.__name__ = "Cox" if over == "events" else "Cox(over='samples')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cox) and self.over == other.over

    def __hash__(self) -> int:
        return hash((Cox, self.over))


LOSS_CLASSES: dict[str, type[Batch]] = {"Cox": Cox}
"""Losses of whole batches that a configuration can name."""


def _cox_over_events(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    terms, events = _cox_terms(outputs, targets, mask)
    return terms.sum() / events.sum().clamp(min=1)


def _cox_over_samples(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    terms, _ = _cox_terms(outputs, targets, mask)
    return terms.sum() / mask.sum().clamp(min=1)


def _cox_terms(outputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the term of each sample, 0 unless it is an event, and which samples are events."""
    scores, times = outputs.reshape(len(targets)), targets[:, 0]
    events = (targets[:, 1] > 0) & mask
    at_risk = (times[None, :] >= times[:, None]) & mask[None, :]
    log_risk = scores.expand(len(scores), -1).masked_fill(~at_risk, -torch.inf)
    # Rows of padding have no sample at risk; a finite row keeps their gradient finite.
    log_risk = torch.where(events[:, None], log_risk, 0).logsumexp(1)
    return torch.where(events, log_risk - scores, 0), events


def _positional_arguments(f: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(f).parameters.values()
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)
