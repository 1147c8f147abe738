"""The checks of a codec."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..codecs.chain import Chain
from ..codecs.codec import Codec
from ..codecs.error_feedback import ErrorFeedback
from ..codecs.own import counted_bytes, kind_of, takes_dtype
from ..core.formatting import format_value
from ..engine.watch import watched
from ..rng import Purpose, normal, stream
from .algorithm import Check
from .findings import Findings
from .trial import independent_copy
from .watcher import MethodWatcher

_SIZES = (1, 2, 7, 64, 300)
_ROWS = 5
_DRAWS = 4096
_ROUNDS = 500
_TYPES = (torch.float32, torch.float64)


@dataclass
class CodecChecks:
    """Encodes and decodes vectors in several ways that must agree."""

    codec: Codec
    findings: Findings

    def __post_init__(self) -> None:
        self._owner = type(self.codec).__name__

    def checks(self) -> list[Check]:
        """Return the checks in their order."""
        return [
            ("declaration", self._check_declaration),
            ("one vector", self._check_one),
            ("a cohort row by row", self._compare_rows),
            ("values that are not finite", self._check_non_finite),
            ("mean over keys", self._check_mean),
            ("residual of error feedback", self._check_residual),
        ]

    def _check_declaration(self) -> None:
        counting = self.codec.used if isinstance(self.codec, ErrorFeedback) else self.codec
        # An nbytes(size) without the dtype can only be that of float32 vectors.
        types = _TYPES if takes_dtype(type(counting)) else _TYPES[:1]  # type: ignore[arg-type]
        for size in _SIZES:
            declared: Any = self.codec.declare(size)
            if not isinstance(declared, Mapping) or not declared or not all(map(self._is_field, declared.items())):
                self.findings.add(
                    "'declare' must return {name: (dtype, number of entries)} with names of letters, digits and _, "
                    f"got {format_value(declared)}"
                )
                return
            payload = self.codec.payload
            if payload is not None and declared.get(payload, ("",))[0] != "float":
                self.findings.add(f"'payload' must name a field that is declared as \"float\", got {payload!r}")
            for dtype in types:
                counted, sent = counted_bytes(self.codec, size, dtype), Codec.nbytes(self.codec, size, dtype)
                if counted != sent:
                    self.findings.add(
                        f"'nbytes' must return the {sent} bytes that are declared for {size} numbers, got {counted}"
                    )

    def _is_field(self, item: tuple[Any, Any]) -> bool:
        name, field = item
        letters = r"[\w.]+" if isinstance(self.codec, Chain | ErrorFeedback) else r"\w+"
        if not isinstance(name, str) or not re.fullmatch(letters, name) or not isinstance(field, tuple | list):
            return False
        kind, length = field if len(field) == 2 else (None, None)
        return (isinstance(kind, torch.dtype) or kind == "float") and type(length) is int and length >= 0

    def _check_one(self) -> None:
        """Encode single vectors, watch the calls, and compare the fields with their declaration."""
        codec = watched(independent_copy(self.codec), MethodWatcher(self.findings))
        for v in _vectors(()):
            size, key = v.shape[-1], _keys(1)[0]
            fields: Any = codec.encode(v, key)
            if self._is_declared(fields, v):
                self._accepts(fields, size)
                decoded: Any = codec.decode(fields, size, key)
                if not isinstance(decoded, Tensor) or decoded.shape != v.shape or not decoded.is_floating_point():
                    self.findings.add(
                        f"'decode' must return floating-point numbers of shape ({size},), got {kind_of(decoded)}"
                    )
            if len(self.findings):
                return

    def _is_declared(self, fields: Any, v: Tensor) -> bool:
        """Whether `encode` returned what is declared; adds a finding otherwise."""
        declared = self.codec.declare(v.shape[-1])
        if not isinstance(fields, Mapping) or set(fields) != set(declared):
            got = sorted(map(str, fields)) if isinstance(fields, Mapping) else fields
            self.findings.add(
                f"'encode' must return the declared fields {', '.join(declared)}, got {format_value(got)}"
            )
            return False
        for name, (kind, length) in declared.items():
            field, dtype = fields[name], kind if isinstance(kind, torch.dtype) else v.dtype
            if not isinstance(field, Tensor) or field.dtype != dtype or field.shape != (*v.shape[:-1], length):
                self.findings.add(
                    f"'encode' must return '{name}' as declared, {dtype} of shape {(*v.shape[:-1], length)} for "
                    f"{v.shape[-1]} numbers of {v.dtype}, got {kind_of(field)}"
                )
                return False
        return True

    def _accepts(self, fields: Mapping[str, Tensor], size: int) -> None:
        try:
            self.codec.check(fields, size)
        except ValueError as error:
            self.findings.add(f"'check' must accept what 'encode' returns, but raises: {error}")

    def _compare_rows(self) -> None:
        """Compare the rows of a cohort with the same vectors alone."""
        if len(self.findings):
            return
        for v in _vectors((_ROWS,)):
            size, keys = v.shape[-1], _keys(_ROWS)
            fields = self.codec.encode(v, keys)
            if not self._is_declared(fields, v):
                return
            decoded = self.codec.decode(fields, size, keys)
            for row, key in enumerate(keys):
                alone = self.codec.encode(v[row], key)
                differing = [f"'{name}'" for name in alone if not torch.equal(alone[name], fields[name][row])]
                if differing:
                    self._differs("encode", differing[0])
                elif decoded.shape != v.shape or not torch.equal(self.codec.decode(alone, size, key), decoded[row]):
                    self._differs("decode", "the vector")

    def _differs(self, method: str, what: str) -> None:
        self.findings.add(
            f"'{method}' must return for a row of a cohort what it returns for the vector alone, bit for bit, but "
            f"{what} differs; reduce each row only, with dim=-1, keepdim=True",
            "cohort",
        )

    def _check_non_finite(self) -> None:
        if len(self.findings):
            return
        for bad in (math.nan, math.inf, -math.inf):
            v = _normal((_DRAWS % 97, 7), torch.float32)  # many keys: random coordinates
            v[:, 3] = bad
            keys = _keys(len(v))
            decoded = self.codec.decode(self.codec.encode(v, keys), 7, keys)
            if decoded.isfinite().all(dim=-1).any():
                self.findings.add(
                    "'decode' must not hide a NaN or an infinity of the vector, but returns finite numbers only; "
                    "send one too"
                )

    def _check_mean(self) -> None:
        """Compare the mean over keys with the vector, if the codec says that it is unbiased."""
        if len(self.findings) or not self.codec.unbiased:
            return
        v, keys = _normal((7,), torch.float32), _keys(_DRAWS)
        decoded = self.codec.decode(self.codec.encode(v.expand(_DRAWS, -1), keys), 7, keys).double()
        error, sigma = (decoded.mean(0) - v).abs(), decoded.std(0) / math.sqrt(_DRAWS)
        if not bool((error <= 6 * sigma + 1e-3 * v.norm()).all()):
            self.findings.add(
                "'unbiased' must be False because the mean of decoded vectors differs from the vector, by "
                f"{float(error.max()):.2g} of {float(v.abs().max()):.2g} over {_DRAWS} keys"
            )

    def _check_residual(self) -> None:
        """Send many vectors with error feedback: the residual must remain bounded."""
        if len(self.findings) or not isinstance(self.codec, ErrorFeedback):
            return
        vectors = _normal((_ROUNDS, 50), torch.float64)
        residual = torch.zeros(50, dtype=torch.float64)
        for v, key in zip(vectors, _keys(_ROUNDS), strict=True):
            residual = self.codec.apply(v, residual, key)[2]
        if not bool(residual.norm() <= 10 * vectors.norm()):  # their sum, with steps in one direction, and a margin
            self.findings.add(
                "Cannot use this codec in ErrorFeedback because its residual grows without bound; return a codec with "
                "‖decoded − v‖ < ‖v‖ from 'contractive'"
            )


def _vectors(rows: tuple[int, ...]) -> Iterator[Tensor]:
    """Yield vectors of several sizes and types, normal and zero."""
    for size in _SIZES:
        for dtype in _TYPES:
            yield _normal((*rows, size), dtype)
        yield torch.zeros(*rows, size)


def _normal(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return normal(stream(0, 0, 0, Purpose.PARTITION), math.prod(shape)).view(shape).to(dtype)


def _keys(count: int) -> Tensor:
    """Return keys as runs pass them: one for each row."""
    return stream(0, 0, torch.arange(count), Purpose.ALGORITHM)
