"""Composition of an algorithm with secure aggregation: its sums are computed from integers modulo 2^bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..aggregation.ring import Quantizer, Ring
from ..aggregation.secure import NUMBER_BITS, Secure
from ..algorithm import Algorithm, Vectors
from ..core.composition import recast, subclass
from .job import Phase

if TYPE_CHECKING:
    from .declaration import Declaration

SATURATED = "secure.saturated"
"""The name of the sum that counts the values above their bounds."""
_ENTRIES = 2**22
"""Entries of rows that are encoded at once."""


class SecureRule(NamedTuple):
    """How the sums of an algorithm become sums of integers."""

    bits: int
    bounds: tuple[tuple[str, float], ...]
    """By upload, the bounds that are given; all others have their default."""
    default: float | None
    """The bound of vectors of the model's size that are not named."""
    threshold: float
    clients: int | None = None
    """The largest cohort, where the encoding must not depend on the cohort: under privacy."""
    steps: tuple[tuple[str, float], ...] = ()
    """By upload, the step of integers, where clients round uploads to it themselves."""

    @property
    def private(self) -> bool:
        """Whether uploads are clipped to their bounds already. The number of values above it would then be secret."""
        return self.clients is not None

    @property
    def option(self) -> Secure:
        """The option `aggregation`, less bounds that are given for single uploads."""
        return Secure(self.bits, self.default, self.threshold)

    def bound(self, upload: str, *, vector: bool) -> float:
        """Return the largest absolute value of an upload."""
        return dict(self.bounds).get(upload, self.option.bound_of(upload, vector=vector))


def with_secure_sums(algorithm: Algorithm, rule: SecureRule) -> Algorithm:
    """Return the algorithm, whose declared sums are those of integers."""
    return recast(algorithm, _secure_class(type(algorithm), rule))  # type: ignore[arg-type]  # a class is hashable


def secure_rule(algorithm: Algorithm) -> SecureRule | None:
    """Return how the sums of an algorithm become sums of integers; None where they are sums of numbers."""
    return algorithm._secure_rule if isinstance(algorithm, _WithSecureSums) else None


@cache
def _secure_class(kind: type[Algorithm], rule: SecureRule) -> type[Algorithm]:
    """Return a subclass of `kind` with this rule: one for all runs that have it, so that runs can merge."""
    return subclass(kind, _WithSecureSums, _secure_rule=rule)


class _WithSecureSums(Algorithm):
    """An algorithm whose sums are those of integers. Its methods and declarations are unchanged."""

    _secure_rule: ClassVar[SecureRule]


class SummedVector(NamedTuple):
    """An upload times a factor of each client, which is summed over a cohort."""

    upload: str
    factor: str
    """The rule that gives the factors: "w", "p", "sum" or "avg/K"."""
    shape: tuple[int, ...]
    bits: int
    bound: float


def summed_vectors(declaration: Declaration, phase: Phase) -> dict[str, SummedVector]:
    """Return what the clients of a phase send for its sums, by name, without the count of saturated values.

    The rules "w" and "avg" have the same factors, so one vector serves both.
    """
    rule = secure_rule(declaration.algorithm)
    assert rule is not None
    found = {}
    for upload, how in declaration.rules(phase).values():
        shape, factor = declaration.up(phase)[upload], _factor(how)
        vector = shape[-1:] == (declaration.layers.size,)
        bits, bound = rule.bits if vector else NUMBER_BITS, rule.bound(upload, vector=vector)
        found[_key((upload, how))] = SummedVector(upload, factor, shape, bits, bound)
    return found


class SecureSums:
    """The sums of a phase of one cohort, as sums of integers."""

    def __init__(self, declaration: Declaration, phase: Phase, steps: Mapping[str, float]) -> None:
        """`steps`: by vector, the step of its integers."""
        rule = secure_rule(declaration.algorithm)
        assert rule is not None
        self.rules = declaration.rules(phase)
        self.vectors = summed_vectors(declaration, phase)
        self.counts = not rule.private and len(self.vectors) > 0
        """`counts`: whether values above their bounds are counted."""
        self.quantizers = {
            key: Quantizer(Ring(vector.bits), vector.bound, steps[key], toward_zero=rule.private)
            for key, vector in self.vectors.items()
        }

    @classmethod
    def of(cls, declaration: Declaration, phase: Phase, factors: Mapping[str, Tensor]) -> SecureSums:
        """Return the sums of a cohort.

        Args:
            declaration: The declarations of the algorithm.
            phase: The phase.
            factors: By declared sum, the factor of each client of the whole cohort; see `upload_factors`.
        """
        rule = secure_rule(declaration.algorithm)
        assert rule is not None
        rules, steps = declaration.rules(phase), {}
        for name, given in factors.items():
            key, S = _key(rules[name]), rule.clients or len(given)
            vector, total = summed_vectors(declaration, phase)[key], sum(given.abs().tolist())
            total = float(S) if rule.private else total
            finest = Quantizer.of(vector.bits, bound=vector.bound, total=total, clients=S).step
            steps[key] = dict(rule.steps).get(vector.upload, finest)
        return cls(declaration, phase, steps)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the sums of integers."""
        counts: dict[str, tuple[int, ...]] = {SATURATED: ()} if self.counts else {}
        return {key: vector.shape for key, vector in self.vectors.items()} | counts

    @property
    def bits(self) -> dict[str, int]:
        """The bits of the sums of integers."""
        return {key: self.vectors[key].bits if key in self.vectors else NUMBER_BITS for key in self.shapes}

    def by_vector(self, factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the factors of each vector from those of the declared sums."""
        return {_key(self.rules[name]): v for name, v in factors.items()}

    def encode(self, uploads: Vectors, factors: Mapping[str, Tensor]) -> Vectors:
        """Return the sums of the integers of several clients.

        Args:
            uploads: Their uploads, (M, …).
            factors: By vector, their factors, (M,); see `by_vector`.
        """
        sums: Vectors = {}
        saturated = {}
        for key, given in factors.items():
            rows, quantizer = uploads[self.vectors[key].upload], self.quantizers[key]
            width = max(1, _ENTRIES // max(1, rows[0].numel())) if len(rows) else 1
            sums[key] = rows.new_zeros(self.vectors[key].shape, dtype=torch.int64)
            for part, f in zip(rows.split(width), given.split(width), strict=True):
                sums[key] += quantizer.encode(part, f).sum(0)
            saturated[self.vectors[key].upload] = quantizer.saturated(rows)
        if self.counts:
            sums[SATURATED] = torch.stack(list(saturated.values())).sum()
        return sums

    def decode(self, sums: Mapping[str, Tensor], scales: Mapping[str, float], x: Tensor) -> Vectors:
        """Return the declared sums, times their scales, in the dtype of x."""
        decoded = {key: quantizer.decode(sums[key]) for key, quantizer in self.quantizers.items()}
        return {name: (scales[name] * decoded[_key(pair)]).to(x.dtype) for name, pair in self.rules.items()}


def _key(pair: tuple[str, str]) -> str:
    """Return the name of the vector for a declared sum: an upload and a rule."""
    return f"{_factor(pair[1])} {pair[0]}"


def _factor(rule: str) -> str:
    return "w" if rule == "avg" else rule
