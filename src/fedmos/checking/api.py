"""`fm.check`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..aggregation.rule import Aggregation
from ..algorithm import Algorithm
from ..algorithms import FedAvg
from ..codecs.chain import as_codec, is_codec
from ..codecs.codec import Codec
from ..core.formatting import format_value
from ..core.validation import LOCAL, count, none, require
from ..engine.misspelt_names import misspelt_sentences
from ..local.chain import is_local
from ..selection.selector import Selector
from .aggregation import AggregationChecks
from .algorithm import AlgorithmChecks, Check
from .codec import CodecChecks
from .findings import Findings
from .selector import SelectorChecks


def check(obj: Any, *, local_steps: int | None = None, verbose: bool = False) -> list[str]:
    """Check an algorithm, selector, local optimiser, codec or aggregation rule of your own on a small federation.

    The checks of an algorithm: its declaration; a client alone against a cohort, which finds `g.norm()` without `dim`;
    the shapes of what every method returns; purity (no change in place, no global random generator, nothing kept on
    self, the same result for the same arguments); bytes as declared; a cohort in blocks, as on several ranks; an
    identical run, alone, resumed, or beside another. A selector: its ids and weights, few available clients, purity,
    its declared state, and what it claims about drawing ahead. A codec: its fields and bytes as declared, a cohort row
    by row, purity, values that are not finite, its mean over keys if it claims to be unbiased. An aggregation rule: its
    shape, purity, the order of clients, equal rows, a change of units.

    Args:
        obj: An object of a class of algorithms, selectors, aggregation rules, local optimisers or codecs; or a list of
            the last two.
        local_steps: The number of local steps; None for one epoch, in which clients have different numbers of steps.
        verbose: Whether to print every check with its outcome.

    Returns:
        The findings, one sentence each; empty if all is well.

    Raises:
        ValueError: If `obj` is none of these.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Normalized(fm.Algorithm):
        ...     lr: float
        ...     def direction(self, y, s, c, grad, k):
        ...         g = grad(y)
        ...         return g / g.norm(dim=-1, keepdim=True), s
        >>> fm.check(Normalized(lr=0.1))
        []
    """
    require("check", "local_steps", local_steps, count.up_to(LOCAL) | none)
    if is_codec(obj):
        obj = as_codec(obj)
    findings = Findings(obj)
    for sentence in misspelt_sentences(obj):
        findings.add(sentence)
    for title, work in _checks(obj, findings, local_steps):
        before = len(findings)
        with findings.collected(), _any_engine():
            work()
        if verbose:
            new = findings.sentences()[before:]
            print(f"{title}: {'ok' if not new else '; '.join(new)}")
        if title == "declaration" and len(findings) > before:
            break
    return findings.sentences()


def _checks(obj: Any, findings: Findings, local_steps: int | None) -> list[Check]:
    if isinstance(obj, Algorithm):
        return AlgorithmChecks(obj, findings, local_steps).checks()
    if isinstance(obj, Selector):
        return SelectorChecks(obj, findings, local_steps).checks()
    if is_local(obj):
        return AlgorithmChecks(FedAvg(lr=0.05), findings, local_steps, obj).checks()
    if isinstance(obj, Codec):
        return CodecChecks(obj, findings).checks()
    if isinstance(obj, Aggregation):
        return AggregationChecks(obj, findings).checks()
    kinds = "an algorithm, a selector, a local optimiser, a codec or an aggregation rule"
    if isinstance(obj, type):
        raise ValueError(f"check: 'obj' must be {kinds}, got the class {obj.__name__}; use {obj.__name__}(...)")
    got = type(obj).__name__ if " at 0x" in format_value(obj) else format_value(obj)
    raise ValueError(f"check: 'obj' must be {kinds}, got {got}")


@contextmanager
def _any_engine() -> Iterator[None]:
    """Ignore `FEDMOS_ENGINE` in the block, which compares engines."""
    given = os.environ.pop("FEDMOS_ENGINE", None)
    try:
        yield
    finally:
        if given is not None:
            os.environ["FEDMOS_ENGINE"] = given
