"""Secure aggregation in a run: what it refuses, and how it changes the algorithm."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..aggregation.ring import Quantizer
from ..aggregation.secure import Secure
from ..algorithm import Algorithm
from ..codecs.links import describe_link
from ..core.declared_fields import names_of
from ..core.history import History
from ..core.validation import suggest
from ..engine.secure_sums import SecureRule, with_secure_sums
from ..privacy.compose import clipping_bounds
from ..privacy.distributed import grid_steps
from ..selection.selector import thins
from .private import has_noisy_sums

if TYPE_CHECKING:
    from .spec import RunSpec

_log = logging.getLogger("fedmos")


def compose_securely(spec: RunSpec, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm, which is composed with all other options, with secure aggregation."""
    secure = spec.aggregation
    assert isinstance(secure, Secure)
    if not (algorithm.up or algorithm.prepare_up):  # nothing leaves a client
        return algorithm
    _check_algorithm(secure, algorithm)
    _check_options(spec, secure)
    _check_selection(spec, secure, algorithm)
    named = secure.bound if isinstance(secure.bound, Mapping) else {}
    default = None if isinstance(secure.bound, Mapping) or secure.bound is None else float(secure.bound)
    clients = None
    if has_noisy_sums(spec):
        named, clients = _private_bounds(secure, algorithm), len(spec.data)
    steps = tuple(sorted(grid_steps(algorithm).items()))
    named = {**named, **{name: math.inf for name, _ in steps}}  # clients keep to the grid, and noise has no bound
    bounds = tuple(sorted((name, float(bound)) for name, bound in named.items()))
    rule = SecureRule(secure.bits, bounds, default, float(secure.threshold), clients, steps)
    return with_secure_sums(algorithm, rule)


def check_cohort(spec: RunSpec, S: int) -> None:
    """Refuse a ring that is too small for cohorts of S clients."""
    if isinstance(spec.aggregation, Secure):
        clients = len(spec.data) if has_noisy_sums(spec) else S
        Quantizer.of(spec.aggregation.bits, bound=1.0, total=1.0, clients=clients)


def warn_of_saturation(history: History) -> None:
    """Log the first round of a run in which values of uploads were clamped."""
    last = history[-1]
    if last.saturated and not any(record.saturated for record in history.since(0)[:-1]):
        _log.warning(
            "Secure aggregation clamped %d values of uploads to their bound in round %d; use a larger 'bound'. See "
            "record.saturated for later rounds",
            last.saturated,
            last.round,
        )


def _check_algorithm(secure: Secure, algorithm: Algorithm) -> None:
    name = type(algorithm).__name__
    for total, (_, rule) in (*algorithm.reduce.items(), *algorithm.prepare_reduce.items()):
        if rule == "each":
            raise ValueError(
                f"Cannot use aggregation={secure} with {name} because its server needs the uploads {total!r} of single "
                "clients; use a method that declares sums"
            )
    known = [*names_of(algorithm.up), *names_of(algorithm.prepare_up)]
    for upload in secure.bound if isinstance(secure.bound, Mapping) else ():
        if upload not in known:
            hint = suggest(upload, known)
            raise ValueError(f"Secure: 'bound' must name uploads of {name} ({', '.join(known)}), got {upload!r}{hint}")


def _check_options(spec: RunSpec, secure: Secure) -> None:
    if spec.uplink is not None:
        raise ValueError(
            f"Cannot use uplink={describe_link(spec.uplink)} with aggregation={secure} because masked uploads are as "
            "long as the vector whatever it contains; use fewer 'bits', or 'downlink'"
        )
    if spec.buffer is not None:
        raise ValueError(
            f"Cannot use buffer={spec.buffer} with aggregation={secure} because masks cancel only among clients that "
            "upload in one round; use synchronous rounds, buffer=None"
        )
    if spec.update_norms:
        raise ValueError(
            f"Cannot use update_norms with aggregation={secure} because the server sees no single update; use "
            "update_norms=False"
        )
    if spec.attack is not None and spec.attack.forges:
        raise ValueError(
            f"Cannot use attack={spec.attack} with aggregation={secure} because it computes uploads from those of "
            "other clients; use an attack on data, such as fm.attacks.LabelFlip"
        )


def _check_selection(spec: RunSpec, secure: Secure, algorithm: Algorithm) -> None:
    selector = spec.selection
    name, reports = type(selector).__name__, selector.reports
    why = None
    if thins(selector):
        why = "it chooses who uploads by what single clients report of their updates"
    elif selector.updates:
        why = "it needs the updates of single clients"
    elif seen := [report for report in reports if report == "update_norm" or report in names_of(algorithm.up)]:
        why = f"single clients would report {', '.join(seen)}, which is computed from their updates"
    if why is not None:
        raise ValueError(
            f"Cannot use aggregation={secure} with {name} because {why}; use another selection, such as fm.Uniform"
        )


def _private_bounds(secure: Secure, algorithm: Algorithm) -> dict[str, float]:
    """Return the bound of each upload, to which it is clipped; refuse smaller ones."""
    clipped = clipping_bounds(algorithm)
    if clipped is None:
        raise ValueError(
            f"Cannot use aggregation={secure} with adaptive clipping because its integers need a fixed bound; use "
            "adaptive=False"
        )
    for name, clip in clipped.items():
        bound = secure.bound.get(name) if isinstance(secure.bound, Mapping) else secure.bound
        if bound is not None and bound < clip:
            raise ValueError(
                f"Cannot clamp {name!r} to {bound:g} because 'privacy' clips it to {clip:g}; use a 'bound' of {clip:g} "
                "or None"
            )
    return clipped
