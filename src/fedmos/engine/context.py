"""The contexts that the engine passes to the methods of an algorithm.

They compute what an algorithm rarely reads only when it does, and they know what it read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NoReturn

import torch

from ..algorithm import ClientContext, Context
from ..core.validation import suggest
from ..rng import Purpose, stream
from .gradients import LocalGradient

_SERVER = -1
"""The number of the server where random streams are named by client."""


@dataclass(frozen=True, kw_only=True)
class ServerContext(Context):
    """The context of the server's methods."""

    owner: str
    """The name of the algorithm."""
    seed: int
    device: torch.device

    def __getattribute__(self, name: str) -> Any:
        if name == "key":
            return stream(self.seed, self.t, _SERVER, Purpose.ALGORITHM, self.device)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> NoReturn:
        raise _unknown(self.owner, "ctx", name, "the server knows", Context)


@dataclass(frozen=True, kw_only=True)
class CohortContext(ClientContext):
    """The context of the clients' methods."""

    owner: str
    """The name of the algorithm."""
    receives_x: bool
    """Whether x is sent to clients."""
    reads: set[str]
    """Receives "S" when the algorithm reads S, a Python number that a captured graph cannot change, and "t"."""
    gradient: LocalGradient

    def __getattribute__(self, name: str) -> Any:
        if name in ("S", "t"):
            self.reads.add(name)
        elif name == "x" and not self.receives_x:
            raise ValueError(f"{self.owner}: 'down' must name x because a method for clients reads c.x")
        elif name == "key":
            return self.gradient.key()
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> NoReturn:
        raise _unknown(self.owner, "c", name, "a client knows", ClientContext)


def _unknown(owner: str, argument: str, name: str, who: str, kind: type[Context]) -> AttributeError:
    """Return the error for a method that reads what its context does not have."""
    known = [f.name for f in fields(kind)]
    hint = suggest(name, known)
    if argument == "c" and name in ("id", "ids", "i", "client", "index", "number"):
        hint = "; methods serve many clients at once, and what belongs to one client is in client_state (c.own)"
    return AttributeError(f"{owner}: there is no {argument}.{name}; {who} {', '.join(known)}{hint}", name=name)
