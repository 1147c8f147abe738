"""The options `aggregation` and `attack` of a run: what they refuse, and how they change the algorithm."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..aggregation import Mean, Secure
from ..algorithm import Algorithm
from ..engine.row_rules import RowRule, with_row_rule
from .private import has_noisy_sums
from .secure import check_cohort, compose_securely

if TYPE_CHECKING:
    from .spec import RunSpec

_log = logging.getLogger("fedmos")


def compose_robustly(spec: RunSpec, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm, which is composed with all other options, with `aggregation` and an attack on uploads."""
    if isinstance(spec.aggregation, Secure):
        return compose_securely(spec, algorithm)
    attack = spec.attack if spec.attack is not None and spec.attack.forges else None
    if spec.aggregation is None and attack is None:
        return algorithm
    if has_noisy_sums(spec) and spec.aggregation is not None:
        raise ValueError(
            f"Cannot use aggregation={spec.aggregation} with 'privacy' because its noise is that of a sum, which one "
            "client moves by the clipping bound at most; use one of them"
        )
    if has_noisy_sums(spec):
        raise ValueError(
            f"Cannot use attack={attack} with 'privacy' because hostile clients would not clip what they upload, and "
            "the server sees sums only; use an attack on data, such as fm.attacks.LabelFlip"
        )
    return with_row_rule(algorithm, RowRule(spec.aggregation or Mean(), attack))


def check_aggregation(spec: RunSpec, S: int) -> None:
    """Refuse an aggregation rule that does not suit the algorithm, or cohorts of S clients."""
    rule, algorithm = spec.aggregation, spec.composed_algorithm
    if rule is None:
        return
    sums = [*algorithm.reduce.values(), *algorithm.prepare_reduce.values()]
    name = type(algorithm).__name__
    if sums and all(how == "each" for _, how in sums):
        raise ValueError(
            f"Cannot use aggregation={rule} with {name} because its server receives the rows of uploads and aggregates "
            "them itself; use another algorithm"
        )
    others = list(dict.fromkeys(upload for upload, how in sums if upload != "delta" and how != "each"))
    if not (rule.scale_free or isinstance(rule, Secure)) and others:
        raise ValueError(
            f"Cannot use aggregation={rule} with {name} because it applies to delta only, and clients also upload "
            f"{', '.join(others)}; use a rule without a bound, such as fm.aggregation.Median()"
        )
    if rule.min_clients > S:
        raise ValueError(
            f"Cannot use aggregation={rule} with rounds of {S} clients because it needs {rule.min_clients}; use a "
            "larger cohort, or another rule"
        )
    check_cohort(spec, S)
    if not isinstance(rule, Mean | Secure) and not rule.trims(S):
        _log.warning("aggregation=%s is the weighted mean in rounds of %d clients: no client is removed", rule, S)
