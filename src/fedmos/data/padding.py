"""Padding of sequences of unequal length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.formatting import format_value
from ..core.losses import PADDING
from .arrays import plain

ONLY = "x"
"""The name of a single input beside a mask or lengths."""


@dataclass(frozen=True)
class SequencePadding:
    """How sequences are padded; see `FederatedData.from_arrays`."""

    value: float
    mask: str | None = None
    lengths: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not np.isfinite(self.value):
            raise ValueError(f"FederatedData: 'padding' must be a number, got {format_value(self.value)}")
        for field in ("mask", "lengths"):
            name = getattr(self, field)
            if not isinstance(name, str | None):
                raise ValueError(f"FederatedData: '{field}' must be the name of an input, got {format_value(name)}")

    def __call__(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return pairs (x, y) in which sequences are arrays of the length of the longest, in all pairs.

        Raises:
            ValueError: If there is no sequence, or sequences cannot be padded.
        """
        single = not isinstance(pairs[0][0], Mapping)
        inputs = [{ONLY: x} if single else dict(x) for x, _ in pairs]
        counts = self._pad_inputs(inputs)
        longest = max(int(count.max()) for count in counts)
        for x, count in zip(inputs, counts, strict=True):
            if self.mask is not None:
                x[self.mask] = np.arange(longest) < count[:, None]
            if self.lengths is not None:
                x[self.lengths] = count
        targets = _padded([y for _, y in pairs], PADDING, "the targets")
        ys = [y for _, y in pairs] if targets is None else targets[0]
        alone = single and self.mask is None and self.lengths is None
        return [(x[ONLY] if alone else x, y) for x, y in zip(inputs, ys, strict=True)]

    def _pad_inputs(self, inputs: list[dict[str, Any]]) -> list[np.ndarray]:
        """Pad the inputs that are sequences of unequal length, and return the lengths of each source."""
        counts: list[np.ndarray] | None = None
        for name in inputs[0]:
            found = _padded([x.get(name) for x in inputs], self.value, f"'{name}'")
            if found is None:
                continue
            arrays, own = found
            same = counts is None or all(map(np.array_equal, counts, own))
            if not same and (self.mask is not None or self.lengths is not None):
                raise ValueError(f"Cannot make a mask because '{name}' has other lengths than the input before it")
            counts = counts or own
            for x, a in zip(inputs, arrays, strict=True):
                x[name] = a
        if counts is None:  # all sequences are equally long
            lengths = (_lengths([x.get(name) for x in inputs]) for name in inputs[0])
            counts = next((own for own in lengths if own is not None), None)
        if counts is None:
            raise ValueError("FederatedData: 'padding' must be None where no input is a list of sequences")
        return counts


def pad_samples(pairs: list[Any], value: float | None, mask: str | None, lengths: str | None) -> list[Any]:
    """Return pairs (x, y) with padded sequences if there is a `value`, unless they are invalid; None stays None."""
    if value is None:
        if mask is not None or lengths is not None:
            raise ValueError("FederatedData: 'padding' must be given with 'mask' or 'lengths', got None")
        return pairs
    given = [pair for pair in pairs if pair is not None]
    if not given or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in given):
        return pairs  # refused later
    padded = iter(SequencePadding(value, mask, lengths)(given))
    return [None if pair is None else next(padded) for pair in pairs]


def _is_sequence(v: Any) -> bool:
    return isinstance(v, list | tuple) or (hasattr(v, "__len__") and getattr(v, "ndim", 0) > 0)


def _lengths(sources: list[Any]) -> list[np.ndarray] | None:
    """Return the lengths of the sequences of each source; None if the samples are not sequences."""
    if not all(hasattr(source, "__len__") and len(source) and all(map(_is_sequence, source)) for source in sources):
        return None
    return [np.array([len(v) for v in source], np.int64) for source in sources]


def _padded(sources: list[Any], value: float, what: str) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """Return the padded sequences and the lengths of each source; None if they are not of unequal length.

    Args:
        sources: For each client and the test set, its samples.
        value: The padding.
        what: The input, for errors.
    """
    lengths = _lengths(sources)
    if lengths is None or len({int(n) for count in lengths for n in count}) == 1:
        return None
    rows = [[plain(v) for v in source] for source in sources]
    filled = [v for source in rows for v in source if len(v)]
    shapes = {v.shape[1:] for v in filled}
    if len(shapes) != 1:
        raise ValueError(f"Cannot pad {what} because its sequences have items of different shapes: {sorted(shapes)}")
    kind, longest = np.result_type(*{v.dtype for v in filled}), max(int(count.max()) for count in lengths)
    if kind.kind not in "biuf" or np.asarray(value).astype(kind) != value:
        raise ValueError(f"Cannot pad {what} because its type is {kind}, which does not hold the padding {value}")
    padded = []
    for source in rows:
        a = np.full((len(source), longest, *next(iter(shapes))), value, kind)
        for i, v in enumerate(source):
            a[i, : len(v)] = v
        padded.append(a)
    return padded, lengths
