"""What a deployment needs to know beside the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.validation import LARGE, Rule, boolean, check, none, positive

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""What clients may be called: their names are those of folders, too."""


def _are_names(v: object) -> bool:
    if not isinstance(v, Sequence) or isinstance(v, str) or not v:
        return False
    return len(set(v)) == len(v) and all(isinstance(name, str) and NAME.fullmatch(name) for name in v)


names_rule = Rule("different names of letters, digits, '_', '-' and '.'", _are_names)
_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """The table `[deploy]` of a configuration.

    Deadline, quorum and over-selection are those of `fedmos.System`, with a deadline in real seconds.
    """

    clients: Sequence[str] | None = None
    """Their names, in the order of their numbers; by default the federation's, or else the numbers."""
    wait: float = 120.0
    """Seconds the server waits for all clients before the first round."""
    rejoin: float = 60.0
    """Seconds after which a client whose node is gone is no longer waited for, until it is back."""
    poll: float = 0.1
    """Seconds between looks for replies."""
    norm_bound: float | None = None
    """Refuse a reply with a vector of a larger norm."""
    train_metrics: bool = False
    """Whether to ask every client for its training loss whenever the model is evaluated."""

    def __post_init__(self) -> None:
        check(
            self,
            clients=names_rule | none,
            wait=positive.up_to(_DAY),
            rejoin=positive.up_to(_DAY),
            poll=positive.up_to(60),
            norm_bound=positive.up_to(LARGE) | none,
            train_metrics=boolean,
        )
