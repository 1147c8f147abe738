"""Names of a user's class that look like misspelt names of its contract, which would be ignored."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from ..aggregation.rule import Aggregation
from ..core.callback import Callback
from .watch import contract_of

_SIMILARITY = 0.85


def misspelt_names(obj: Any) -> Iterator[tuple[str, str]]:
    """Yield the methods and declarations of an object's class that are near to one of the contract, with that one.

    Fields of a dataclass are none of them, nor is a name beside the one that it resembles.
    """
    kind = type(obj)
    base = next((base for base in (Aggregation, Callback) if isinstance(obj, base)), contract_of(kind))
    if base is kind or kind.__module__.split(".")[0] == "fedmos":
        return
    contract = [name for name in dir(base) if not name.startswith("_")]
    given = {name: v for cls in reversed(kind.__mro__) if cls not in base.__mro__ for name, v in vars(cls).items()}
    options = {f.name for f in fields(obj)} if is_dataclass(obj) else set()
    for name, value in given.items():
        if name.startswith("_") or name in contract or name in options:
            continue
        if not (callable(value) or isinstance(value, property | tuple | list | dict | str | bool)):
            continue
        near = difflib.get_close_matches(name, contract, n=1, cutoff=_SIMILARITY)
        near = near or [known for known in contract if _is_slip(name, known)]
        if near and near[0] not in given:
            yield name, near[0]


def _is_slip(name: str, known: str) -> bool:
    """Whether a name is a known one with its letters in another order, or with one too many or too few."""
    if name[0] != known[0]:
        return False
    short, long = sorted((name, known), key=len)
    return sorted(name) == sorted(known) or any(long[:i] + long[i + 1 :] == short for i in range(1, len(long)))


def misspelt_sentences(obj: Any) -> list[str]:
    """Return a sentence for each such name."""
    owner = type(obj).__name__
    return [
        f"{owner}: '{name}' has no meaning to fedmos and is ignored (did you mean '{near}'?); rename it, or let its "
        "name begin with _"
        for name, near in misspelt_names(obj)
    ]
