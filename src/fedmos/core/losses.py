"""Loss functions: means over a batch, and the terms of single samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from .validation import suggest

LossFunction = Callable[[Tensor, Tensor], Tensor]

PADDING = -100
"""The target of a position that is ignored, as PyTorch's `ignore_index`."""

_NAMED: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "bce": F.binary_cross_entropy_with_logits,
}

NAMES = tuple(_NAMED)


class Loss:
    """A loss given by name or as a callable (outputs, targets) → mean over the batch."""

    def __init__(self, loss: str | LossFunction) -> None:
        if isinstance(loss, str) and loss not in _NAMED:
            raise ValueError(
                f"run: 'loss' must be a callable or one of {', '.join(_NAMED)}, got {loss!r}{suggest(loss, _NAMED)}"
            )
        if not isinstance(loss, str) and not callable(loss):
            raise ValueError(f"run: 'loss' must be a callable or one of {', '.join(_NAMED)}, got {loss!r}")
        self.name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        self.named = loss if isinstance(loss, str) else None
        """The name of a built-in loss, or None for a callable."""
        self.function = loss
        self._mean: LossFunction = _NAMED[loss] if isinstance(loss, str) else loss

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the batch, 0-dimensional."""
        if self.named == "cross_entropy" and targets.ndim > 1:
            # F.cross_entropy averages over positions, which would weight long samples more than short ones.
            return self.each(outputs, targets).mean()
        return self._mean(outputs, self._cast_targets(outputs, targets)).reshape(())

    def _cast_targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cast class numbers to the dtype of the outputs for losses of real targets."""
        return targets.to(outputs.dtype) if self.named in ("mse", "bce") else targets

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one number per sample; their mean is the loss."""
        if self.named is None:
            return vmap(lambda o, t: self._mean(o[None], t[None]).reshape(()))(outputs, targets)
        terms = _NAMED[self.named](outputs, self._cast_targets(outputs, targets), reduction="none")
        if self.named == "cross_entropy":
            return per_sample(terms, targets)
        return terms.flatten(1).mean(1) if terms.ndim > 1 else terms

    def each_or_loop(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return `each`, sample by sample if the callable does not support `vmap`."""
        try:
            return self.each(outputs, targets)
        except RuntimeError:
            return torch.stack([self.mean(o[None], t[None]) for o, t in zip(outputs, targets, strict=True)])


def per_sample(terms: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of each sample over its positions that are not padding; 0 if all are padding."""
    if terms.ndim == 1:
        return terms
    counted = (targets != PADDING).flatten(1)
    return (terms.flatten(1) * counted).sum(1) / counted.sum(1).clamp(min=1)
