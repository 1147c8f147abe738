"""The contract of an attack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.equality import EqualByFields
from ..core.formatting import format_value
from ..core.validation import require, share


@dataclass(frozen=True, kw_only=True)
class Attack(EqualByFields):
    """Base class of attacks: what hostile clients of a simulation do, to study aggregation rules with.

    Subclass it as a frozen dataclass and define `poison`, which changes the training data of hostile clients, or
    `forge`, which changes their uploads. The other methods of a hostile client are those of the algorithm.

    Args:
        share: The share of all clients that are hostile, rounded to a number of clients; the run's seed draws them.
        clients: The hostile clients by number or name, in place of `share`.

    Raises:
        ValueError: Unless exactly one of `share` and `clients` is given, and is valid.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Zero(fm.attacks.Attack):
        ...     def forge(self, rows, honest, key):
        ...         return torch.zeros_like(rows)
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, attack=Zero(clients=[0, 3])
        ... )
        >>> result.info["hostile"]
        [0, 3]
    """

    share: float | None = None
    clients: Sequence[int | str] | None = None

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if (self.share is None) == (self.clients is None):
            got = "neither" if self.share is None else "both"
            raise ValueError(f"{owner}: exactly one of 'share' and 'clients' must be given, got {got}")
        if self.share is not None:
            require(owner, "share", self.share, share)
        else:
            object.__setattr__(self, "clients", _checked(owner, self.clients))

    def poison(self, x: Tensor, y: Tensor, classes: int, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the training data of the hostile clients; by default as given.

        Args:
            x: Their inputs as they are stored, before normalisation, (n, …). Return the same object to leave them.
            y: Their targets, (n, …).
            classes: The number of classes; 0 if targets are not classes.
            key: A random stream of the run for the functions of `fedmos.rng`, 0-dimensional.
        """
        return x, y

    def forge(self, rows: Tensor, honest: Tensor, key: Tensor) -> Tensor:
        """Return what the hostile clients of a round upload in place of a vector; by default as given.

        Args:
            rows: The vectors that they would upload, (H, D), after decoding if they were coded.
            honest: Those of the other clients of the round, (S − H, D); if there is none, `rows`.
            key: Random streams of the run, one for each hostile client, (H,), for the functions of `fedmos.rng`.
        """
        return rows

    @property
    def poisons(self) -> bool:
        """Whether the attack changes data."""
        return type(self).poison is not Attack.poison

    @property
    def forges(self) -> bool:
        """Whether the attack changes uploads."""
        return type(self).forge is not Attack.forge


def _checked(owner: str, clients: Any) -> tuple[int | str, ...]:
    """Return the hostile clients as a tuple. Whether they exist is checked with the data."""
    given = None
    if not isinstance(clients, str) and isinstance(clients, Iterable):  # also arrays, and lists of their numbers
        given = tuple(one.item() if hasattr(one, "item") else one for one in clients)
    if not given or not all(isinstance(i, int | str) and not isinstance(i, bool) for i in given):
        raise ValueError(
            f"{owner}: 'clients' must be a list of numbers or names of clients, got {format_value(clients)}"
        )
    return given
