"""The options of a deployment beyond those of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.validation import LARGE, Rule, boolean, check, count, none, one_of, positive

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""Pattern of a client's name, which is also the name of its folder."""


def _are_names(v: object) -> bool:
    if not isinstance(v, Sequence) or isinstance(v, str) or not v:
        return False
    if not all(isinstance(name, str) and NAME.fullmatch(name) for name in v):
        return False
    return len({name.lower() for name in v}) == len(v)  # some file systems do not distinguish capitals


names_rule = Rule("different names of letters, digits, '_', '-' and '.'", _are_names)
FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
"""Pattern of the fingerprint of a public key."""


def _is_table(v: object, test: Callable[[object], bool]) -> bool:
    return isinstance(v, Mapping) and all(isinstance(k, str) and NAME.fullmatch(k) and test(x) for k, x in v.items())


_keys_rule = Rule(
    "fingerprints SHA256:… by client", lambda v: _is_table(v, lambda key: bool(FINGERPRINT.fullmatch(str(key))))
)
_samples_rule = Rule("integers ≥ 1 by client", lambda v: _is_table(v, count.test))
_DAY = 86400.0
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
_address_rule = Rule(
    "HOST:PORT",
    lambda v: isinstance(v, str) and (found := _ADDRESS.fullmatch(v)) is not None and 0 < int(found[2]) < 65536,
)


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """Options of a deployment; the table `[deploy]` of a configuration.

    Deadline, quorum and over-selection are fields of `fedmos.System`; in a deployment, its deadline is in real seconds.

    Args:
        clients: Names of the clients, in the order of their numbers. Defaults to the names in the federated data, or
            else to "0", "1", and so on.
        keys: The fingerprint of each client's public key, as `ssh-keygen -lf` prints it. "learn": the first key that
            claims a client's name in the run is that client's key, also where a mapping does not name the client.
            "off": the server believes the names that nodes claim, for networks without node authentication.
        samples: The number of samples of clients, by name, that the operator has agreed to. A client that claims
            another number is refused.
        max_samples: The largest number of samples that a client may claim without agreement.
        samples_factor: How many times the median of all clients a number of samples may be without agreement. With
            fewer than three clients, `max_samples` is the only bound.
        wait: Seconds that the server waits for all clients before the first round.
        rejoin: Seconds that the server waits for a client whose node is disconnected. After that, the client counts as
            late in every round until it reconnects.
        outage_limit: Seconds that a round waits for clients while fewer than the quorum can be reached; "off" for no
            limit. After that, the run stops with an error and can be continued.
        poll: Seconds between the server's queries for replies; grows while no reply arrives.
        norm_bound: The largest Euclidean norm of an uploaded vector: a number; "adaptive", `norm_factor` times the
            median of the norms of the cohort and of those that clients had before; or "off". A larger upload is left
            out of the round and logged.
        norm_factor: How many times the median the norm of an upload may be, where `norm_bound` is "adaptive".
        quarantine: After how many refusals in a row a client is left out of cohorts; "off" for never.
        quarantine_rounds: For how many rounds it is left out; "off" until it is released (`fedmos deploy release`).
        keep_checkpoints: How many checkpoints the server keeps, to go back to (`fedmos deploy rollback`). Clients keep
            their state of as many rounds.
        train_metrics: Whether to query every client for its training metrics when the model is evaluated.
        metrics: The address "HOST:PORT" at which the server app serves metrics for Prometheus (/metrics) and its health
            (/health), without authentication; None for neither.
        log: The form of the server's log: "text", or "json" for one JSON object per line. The log of a client is
            chosen by the environment variable FEDMOS_LOG on its own machine.
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
    keys: Mapping[str, str] | Literal["learn", "off"] = "learn"
    samples: Mapping[str, int] | None = None
    max_samples: int = 10**7
    samples_factor: float = 100.0
    wait: float = 120.0
    rejoin: float = 60.0
    outage_limit: float | Literal["off"] = 86400.0
    poll: float = 0.1
    norm_bound: float | Literal["adaptive", "off"] | None = "adaptive"
    norm_factor: float = 100.0
    quarantine: int | Literal["off"] = 3
    quarantine_rounds: int | Literal["off"] = 20
    keep_checkpoints: int = 5
    train_metrics: bool = False
    compress: bool = False
    metrics: str | None = None
    log: Literal["text", "json"] | None = None

    def __post_init__(self) -> None:
        check(
            self,
            clients=names_rule | none,
            keys=_keys_rule | one_of("learn", "off"),
            samples=_samples_rule | none,
            max_samples=count,
            samples_factor=Rule("≥ 1", lambda v: positive.test(v) and v >= 1, LARGE),
            wait=positive.up_to(_DAY),
            rejoin=positive.up_to(_DAY),
            outage_limit=positive.up_to(366 * _DAY) | one_of("off"),
            poll=positive.up_to(60),
            norm_bound=positive.up_to(LARGE) | one_of("adaptive", "off") | none,
            norm_factor=Rule("≥ 1", lambda v: positive.test(v) and v >= 1, LARGE),
            quarantine=count | one_of("off"),
            quarantine_rounds=count | one_of("off"),
            keep_checkpoints=Rule("an integer in [2, 1000]", lambda v: count.test(v) and 2 <= v <= 1000),
            train_metrics=boolean,
            compress=boolean,
            metrics=_address_rule | none,
            log=one_of("text", "json") | none,
        )
        self._check_names()

    def _check_names(self) -> None:
        """Refuse keys and numbers of samples of clients that do not exist."""
        for field in ("keys", "samples"):
            table = getattr(self, field)
            unknown = sorted(set(table) - set(self.clients)) if isinstance(table, Mapping) and self.clients else []
            if unknown:
                raise ValueError(f"Deploy: '{field}' must be a table of 'clients', got {', '.join(unknown[:5])}")
