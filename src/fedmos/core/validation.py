"""Validation of arguments, with one template for errors: "FedProx: 'mu' must be ≥ 0, got -1"."""

from __future__ import annotations

import difflib
import importlib
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from .formatting import format_value


@dataclass(frozen=True)
class Rule:
    """A condition on a value: a description for error messages and a test."""

    text: str
    test: Callable[[Any], bool]
    most: float = math.inf
    """Upper bound for numbers; larger ones are mistakes that would exhaust memory or overflow."""

    def __or__(self, other: Rule) -> Rule:
        text = f"{self.text} or {other.text}"
        return Rule(text, lambda v: self.test(v) or other.test(v), min(self.most, other.most))

    def up_to(self, most: float) -> Rule:
        """Return the rule with another upper bound."""
        return replace(self, most=most)

    def fault(self, v: Any) -> str | None:
        """Return the condition that the value violates, or None."""
        if not self.test(v):
            return self.text
        return f"≤ {self.most:,}" if _larger(v, self.most) else None


def _number(v: Any) -> bool:
    try:
        return isinstance(v, Real) and not isinstance(v, bool) and math.isfinite(v)
    except OverflowError:  # an integer too large for a float
        return False


def _larger(v: Any, most: float) -> bool:
    return isinstance(v, Real) and bool(v > most)  # type: ignore[operator]


def _integer(v: Any) -> bool:
    return isinstance(v, Integral) and not isinstance(v, bool)


MANY = 10**9
"""Upper bound of all counts."""
LOCAL = 10**6
"""Upper bound of the local steps or epochs of a round."""
LARGE = 1e30
"""Products of larger numbers overflow in float32."""


number = Rule("a number", _number)
positive = Rule("> 0", lambda v: _number(v) and v > 0)
non_negative = Rule("≥ 0", lambda v: _number(v) and v >= 0)
fraction = Rule("in [0, 1]", lambda v: _number(v) and 0 <= v <= 1)
below_one = Rule("in [0, 1)", lambda v: _number(v) and 0 <= v < 1)
share = Rule("in (0, 1]", lambda v: _number(v) and 0 < v <= 1)
count = Rule("an integer ≥ 1", lambda v: _integer(v) and v >= 1, MANY)
whole_number = Rule("an integer ≥ 0", lambda v: _integer(v) and v >= 0, MANY)
integer = Rule("an integer", _integer)
seed = Rule("an integer of 64 bits", lambda v: _integer(v) and -(2**63) <= v < 2**64)
at_least_one = Rule("≥ 1", lambda v: _number(v) and v >= 1, 1e6)
pixels = whole_number.up_to(1000)
boolean = Rule("true or false", lambda v: isinstance(v, bool))
none = Rule("None", lambda v: v is None)
path = Rule("a path", lambda v: isinstance(v, str | os.PathLike))


def text_up_to(most: int) -> Rule:
    """Return the rule that a value is a text of printable characters, not empty and not longer than `most`."""
    return Rule(
        f"a text of 1 to {most:,} printable characters",
        lambda v: isinstance(v, str) and 0 < len(v) <= most and v.isprintable(),
    )


def one_of(*options: Any) -> Rule:
    """Return the rule that a value is one of `options`; 1, 1.0 and True are different values."""
    return Rule(
        "one of " + ", ".join(repr(o) for o in options),
        lambda v: any(type(v) is type(o) and v == o for o in options),
    )


def require(owner: str, field: str, value: Any, rule: Rule) -> None:
    """Raise ValueError unless the value meets the rule."""
    fault = rule.fault(value)
    if fault is not None:
        raise ValueError(f"{owner}: '{field}' must be {fault}, got {format_value(value)}")


def check(obj: Any, **rules: Rule) -> None:
    """Check the fields of a dataclass, from its `__post_init__`."""
    for field, rule in rules.items():
        require(type(obj).__name__, field, getattr(obj, field), rule)


def suggest(word: object, known: Iterable[str]) -> str:
    """Return a hint like " (did you mean 'local_steps'?)", or "" if no known word is similar."""
    words = list(known)
    if not isinstance(word, str):
        return ""
    same = [w for w in words if len(w) > 1 and w.lower() == word.lower()]
    close = same or difflib.get_close_matches(word[:100], words, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def needs(module: str, package: str, purpose: str) -> Any:
    """Import an optional module. Raises ImportError with the package to install if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"Cannot {purpose} because {package} is not installed; pip install {package}") from error
