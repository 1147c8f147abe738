"""One template for errors about a value: "FedProx: 'mu' must be ≥ 0, got -1"."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words and as a test."""

    text: str
    test: Callable[[Any], bool]

    def __or__(self, other: Rule) -> Rule:
        return Rule(f"{self.text} or {other.text}", lambda v: self.test(v) or other.test(v))


def _number(v: Any) -> bool:
    return isinstance(v, Real) and not isinstance(v, bool) and math.isfinite(v)


def _integer(v: Any) -> bool:
    return isinstance(v, Integral) and not isinstance(v, bool)


number = Rule("a number", _number)
positive = Rule("> 0", lambda v: _number(v) and v > 0)
non_negative = Rule("≥ 0", lambda v: _number(v) and v >= 0)
fraction = Rule("in [0, 1]", lambda v: _number(v) and 0 <= v <= 1)
below_one = Rule("in [0, 1)", lambda v: _number(v) and 0 <= v < 1)
share = Rule("in (0, 1]", lambda v: _number(v) and 0 < v <= 1)
count = Rule("an integer ≥ 1", lambda v: _integer(v) and v >= 1)
whole_number = Rule("an integer ≥ 0", lambda v: _integer(v) and v >= 0)
integer = Rule("an integer", _integer)
boolean = Rule("true or false", lambda v: isinstance(v, bool))
none = Rule("None", lambda v: v is None)


def one_of(*options: Any) -> Rule:
    """One of a few values; 1, 1.0 and True are kept apart."""
    return Rule(
        "one of " + ", ".join(repr(o) for o in options),
        lambda v: any(type(v) is type(o) and v == o for o in options),
    )


def require(owner: str, field: str, value: Any, rule: Rule) -> None:
    if not rule.test(value):
        raise ValueError(f"{owner}: '{field}' must be {rule.text}, got {value!r}")


def check(obj: Any, **rules: Rule) -> None:
    """Check the fields of a dataclass; called from its `__post_init__`."""
    for field, rule in rules.items():
        require(type(obj).__name__, field, getattr(obj, field), rule)


def suggest(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'local_steps'?)" or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def needs(module: str, package: str, purpose: str) -> Any:
    """An optional module, or a sentence that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"Cannot {purpose} because {package} is not installed; pip install {package}") from error
