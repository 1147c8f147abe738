"""The options of a deployment beyond those of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.validation import LARGE, Rule, boolean, check, none, one_of, positive

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""Pattern of a client's name, which is also the name of its folder."""


def _are_names(v: object) -> bool:
    if not isinstance(v, Sequence) or isinstance(v, str) or not v:
        return False
    return len(set(v)) == len(v) and all(isinstance(name, str) and NAME.fullmatch(name) for name in v)


names_rule = Rule("different names of letters, digits, '_', '-' and '.'", _are_names)
_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """Options of a deployment; the table `[deploy]` of a configuration.

    Deadline, quorum and over-selection are fields of `fedmos.System`; in a deployment, its deadline is in real seconds.

    Args:
        clients: Names of the clients, in the order of their numbers. Defaults to the names in the federated data, or
            else to "0", "1", and so on.
        wait: Seconds that the server waits for all clients before the first round.
        rejoin: Seconds that the server waits for a client whose node is disconnected. After that, the client counts as
            late in every round until it reconnects.
        poll: Seconds between the server's queries for replies; grows while no reply arrives.
        norm_bound: The largest Euclidean norm of an uploaded vector: a number; "adaptive", `norm_factor` times the
            median of the norms of the cohort and of those that clients had before; or "off". A larger upload is left
            out of the round and logged.
        norm_factor: How many times the median the norm of an upload may be, where `norm_bound` is "adaptive".
        train_metrics: Whether to query every client for its training metrics when the model is evaluated.
        compress: Whether encoded vectors (the options `uplink` and `downlink`) are compressed by zlib where that makes
            them shorter. The bytes of records, which are measured, are then fewer than those of a simulation.

    Raises:
        ValueError: If an option has an invalid value.

    Example:
        >>> from fedmos.flower import Deploy
        >>> Deploy(clients=["hospital-a", "hospital-b"], norm_bound=100.0).rejoin
        60.0
    """

    clients: Sequence[str] | None = None
    wait: float = 120.0
    rejoin: float = 60.0
    poll: float = 0.1
    norm_bound: float | Literal["adaptive", "off"] | None = "adaptive"
    norm_factor: float = 100.0
    train_metrics: bool = False
    compress: bool = False

    def __post_init__(self) -> None:
        check(
            self,
            clients=names_rule | none,
            wait=positive.up_to(_DAY),
            rejoin=positive.up_to(_DAY),
            poll=positive.up_to(60),
            norm_bound=positive.up_to(LARGE) | one_of("adaptive", "off") | none,
            norm_factor=Rule("≥ 1", lambda v: positive.test(v) and v >= 1, LARGE),
            train_metrics=boolean,
            compress=boolean,
        )
