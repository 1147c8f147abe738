"""Loss functions of a batch, and how a batch loss is a weighted sum over samples.

The engines compute the loss of a batch as Σ_n weight_n · term_n. The kinds of losses follow from their weights:

| kind | weight of a sample | examples |
|---|---|---|
| mean | 1 / n | most losses |
| weighted mean | 1 / Σ of the class weights of the targets that are not ignored | class weights, `ignore_index` |
| mean over sequences | 1 / number of sequences with a target that is not ignored | `"cross_entropy"` of sequences |
| sum | 1 | `reduction="sum"` |

A loss that is no such sum, e.g. a partial likelihood, is a `fedmos.losses.Batch`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from .batch_losses import Batch
from .validation import Rule, non_negative, suggest

LossFunction = Callable[[Tensor, Tensor], Tensor]

PADDING = -100
"""The target of a position that is ignored, as PyTorch's `ignore_index`."""

_NAMED: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "bce": F.binary_cross_entropy_with_logits,
}

NAMES = tuple(_NAMED)


def _is_class_weights(v: Any) -> bool:
    if isinstance(v, str):
        return v == "balanced"
    return isinstance(v, Sequence) and all(non_negative.test(w) for w in v) and any(v)


class_weights_rule = Rule("'balanced' or a list of numbers ≥ 0, not all 0, one for each class", _is_class_weights)


class _ClassNorm(NamedTuple):
    """The weight of each target in the denominator of a weighted mean, as in PyTorch's cross entropy."""

    weight: Tensor | None
    ignore_index: int

    def __call__(self, targets: Tensor) -> Tensor:
        counted = targets != self.ignore_index
        return counted if self.weight is None else torch.where(counted, self.weight[targets.where(counted, 0)], 0)

    def applies(self, targets: Tensor) -> bool:
        """Whether the denominator differs from the number of targets."""
        if targets.is_floating_point():  # PyTorch divides by the batch size where targets are probabilities
            return False
        return self.weight is not None or bool((targets == self.ignore_index).any())


class Loss:
    """A loss given by name or as a callable (outputs, targets) → loss of the batch.

    Args:
        loss: A name of `NAMES`, a callable, or a `Batch`.
        class_weights: Weights of the classes of `cross_entropy`, or of the positive class of `bce`.

    Raises:
        ValueError: If the loss is unknown or its reduction is "none".
    """

    def __init__(self, loss: str | LossFunction, class_weights: Tensor | None = None) -> None:
        if isinstance(loss, type):
            name = loss.__name__
            raise ValueError(
                f"run: 'loss' must be a function of (outputs, targets), got the class {name}; use {name}()"
            )
        if (isinstance(loss, str) and loss not in _NAMED) or not (isinstance(loss, str) or callable(loss)):
            hint = suggest(loss, _NAMED) if isinstance(loss, str) else ""
            raise ValueError(f"run: 'loss' must be a callable or one of {', '.join(_NAMED)}, got {loss!r}{hint}")
        self.name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        self.named = loss if isinstance(loss, str) else None
        """The name of a built-in loss, or None for a callable."""
        self.function = loss
        self.batch = loss if isinstance(loss, Batch) else None
        """The loss of a whole batch, if it is no sum over samples."""
        self._mean: Callable[..., Tensor] = _with_class_weights(loss, class_weights)
        self._terms, reduction = _without_reduction(self._mean)
        if reduction == "none":
            raise ValueError(f"run: 'loss' must return one number, but {self.name} has reduction='none'; use 'mean'")
        self.sums = reduction == "sum"
        """Whether the loss is a sum over samples instead of a mean."""
        self._norm = _class_norm(self._mean)
        self._normed = self._norm is not None and self._norm.weight is not None
        self._skips = False
        """Whether sequences of which every target is ignored do not count in the mean over sequences."""

    def to(self, device: torch.device, dtype: torch.dtype, *targets: Tensor) -> Loss:
        """Return the loss with its weights on the device, for the given training and test targets."""
        moved = copy.copy(self)
        if isinstance(self._mean, nn.Module):
            moved._mean = copy.deepcopy(self._mean).to(device)
            for name, buffer in moved._mean.named_buffers():
                if buffer.is_floating_point():
                    setattr(moved._mean, name, buffer.to(dtype))
        elif isinstance(self._mean, partial):
            keywords = {k: v.to(device, dtype) if isinstance(v, Tensor) else v for k, v in self._mean.keywords.items()}
            moved._mean = partial(self._mean.func, *self._mean.args, **keywords)
        moved._terms, _ = _without_reduction(moved._mean)
        moved._norm = _class_norm(moved._mean)
        moved._normed = moved._norm is not None and any(
            moved._norm.applies(y) for y in targets if not (self.named and moved._norm.weight is None and y.ndim > 1)
        )
        sequences = [y for y in targets if y.ndim > 1] if self.named == "cross_entropy" and not moved._normed else []
        moved._skips = not all(bool(has_label(y).all()) for y in sequences)
        return moved

    @property
    def is_pytorch(self) -> bool:
        """Whether the loss is one of PyTorch's, which depends on nothing but its arguments."""
        return self.named is not None or (getattr(self.function, "__module__", None) or "").startswith("torch.nn.")

    @property
    def computed(self) -> Callable[..., Tensor]:
        """The function that is called: the user's, or its copy on the device."""
        return self._mean if self.batch is None else self.batch.f

    @property
    def key(self) -> Hashable:
        """Equal for losses that compute the same, also with the class weights and targets of another run."""
        weights = self._mean.keywords if self.named is not None and isinstance(self._mean, partial) else {}
        return self.function, self._normed, self._skips, tuple((name, tuple(v.tolist())) for name, v in weights.items())

    @property
    def uniform(self) -> bool:
        """Whether the loss is the mean over samples, so that each has the weight 1/n."""
        return not (self.sums or self._normed or self._skips or self.batch is not None)

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the batch, 0-dimensional."""
        if self.batch is not None:
            return self.batch(outputs, targets, torch.ones(len(outputs), dtype=torch.bool, device=outputs.device))
        if self.named == "cross_entropy" and targets.ndim > 1 and not self._normed:
            # F.cross_entropy averages over positions, which would weight long samples more than short ones.
            each = self.each(outputs, targets)
            return each.sum() / has_label(targets).sum().clamp(min=1) if self._skips else each.mean()
        return self.returned(outputs, targets).reshape(())

    def returned(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what the callable returns of a batch; a loss of one's own need not return one number."""
        return self._mean(outputs, self._cast_targets(outputs, targets))

    def weights(self, targets: Tensor, counted: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight of each sample in the loss of its batch.

        Args:
            targets: (…, n) or, with several positions per sample, (…, n, positions).
            counted: (…, n), bool: the samples of the batch; others are padding.
            dtype: The dtype of the weights.
        """
        if self.sums:
            return counted.to(dtype)
        norms = self.norms(targets, counted.ndim).to(dtype) * counted
        total = norms.sum(-1, keepdim=True)
        # A batch without a counted target has the loss 0 and no gradient.
        return torch.where(total > 0, counted / total.where(total > 0, 1), 0)

    def norms(self, targets: Tensor, ndim: int = 1) -> Tensor:
        """Return the denominator of each sample in a mean; samples have the first `ndim` axes of `targets`."""
        if self._skips:
            return has_label(targets, ndim).float()
        if not self._normed or self._norm is None:
            return torch.ones(targets.shape[:ndim], device=targets.device)
        norms = self._norm(targets)
        return norms.flatten(ndim).sum(-1) if norms.ndim > ndim else norms

    def weighted(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of a batch in which samples of weight zero are padding."""
        if self.batch is not None:
            return self.batch(outputs, targets, weight > 0)
        return (weight * self.each(outputs, targets)).sum()

    def weighted_under_vmap(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        """Return `weighted`, with the same bits.

        Under `vmap`, PyTorch's cross entropy is computed in Python, and imports SymPy, which takes a third of a second.
        """
        plain = self.function == "cross_entropy" and self._mean is F.cross_entropy and outputs.ndim == 2
        if not plain or targets.ndim != 1 or targets.is_floating_point():
            return self.weighted(outputs, targets, weight)
        counted = (targets != PADDING)[:, None]
        terms = -F.log_softmax(outputs, 1).gather(1, torch.where(counted, targets[:, None], 0))
        return (weight * torch.where(counted, terms, 0)[:, 0]).sum()

    def _cast_targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cast class numbers to the dtype of the outputs for losses of real targets."""
        return targets.to(outputs.dtype) if self.named in ("mse", "bce") else targets

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the term of each sample; the loss is their sum with `weights`."""
        if self._normed:
            assert self._terms is not None
            terms = self._terms(outputs, targets)
            return terms.flatten(1).sum(1) if terms.ndim > 1 else terms
        if self.named is None:
            return vmap(lambda o, t: self._mean(o[None], t[None]).reshape(()))(outputs, targets)
        assert self._terms is not None
        terms = self._terms(outputs, self._cast_targets(outputs, targets))
        if self.named == "cross_entropy":
            return per_sample(terms, targets)
        return terms.flatten(1).mean(1) if terms.ndim > 1 else terms

    def each_or_loop(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return `each`, sample by sample if the callable does not support `vmap`."""
        try:
            return self.each(outputs, targets)
        except RuntimeError:
            return torch.stack([self.mean(o[None], t[None]) for o, t in zip(outputs, targets, strict=True)])


def _with_class_weights(loss: Any, weights: Tensor | None) -> Callable[..., Tensor]:
    function: Callable[..., Tensor] = _NAMED[loss] if isinstance(loss, str) else loss
    if weights is None:
        return function
    return partial(function, **{"weight" if loss == "cross_entropy" else "pos_weight": weights})


def _without_reduction(loss: Callable[..., Tensor]) -> tuple[Callable[..., Tensor] | None, str]:
    """Return a loss of PyTorch without its reduction, and the reduction; (None, "mean") for other callables."""
    if isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch.nn") and hasattr(loss, "reduction"):
        terms = copy.copy(loss)
        setattr(terms, "reduction", "none")  # noqa: B010
        return terms, str(loss.reduction)
    function, keywords = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    if getattr(function, "__module__", None) == F.__name__:
        return partial(loss, reduction="none"), keywords.get("reduction", "mean")
    return None, "mean"


def _class_norm(loss: Callable[..., Tensor]) -> _ClassNorm | None:
    """Return the denominator of a cross entropy or negative log-likelihood of PyTorch; None for other losses."""
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and type(loss).__module__.startswith("torch.nn"):
        return _ClassNorm(loss.weight, loss.ignore_index) if loss.reduction == "mean" else None
    function, keywords = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    if function in (F.cross_entropy, F.nll_loss) and keywords.get("reduction", "mean") == "mean":
        return _ClassNorm(keywords.get("weight"), keywords.get("ignore_index", PADDING))
    return None


def has_label(targets: Tensor, ndim: int = 1) -> Tensor:
    """Return which samples have a target that is not ignored; samples have the first `ndim` axes of `targets`."""
    if targets.is_floating_point():
        return torch.ones(targets.shape[:ndim], dtype=torch.bool, device=targets.device)
    counted = targets != PADDING
    return counted.flatten(ndim).any(-1) if targets.ndim > ndim else counted


def per_sample(terms: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of each sample over its positions that are not padding; 0 if all are padding."""
    if terms.ndim == 1:
        return terms
    counted = (targets != PADDING).flatten(1)
    return (terms.flatten(1) * counted).sum(1) / counted.sum(1).clamp(min=1)
