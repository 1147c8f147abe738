"""Values and words as error messages show them: on one line, and short however long they are."""

from __future__ import annotations

import reprlib
from typing import Any

_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxlist, _brief.maxtuple, _brief.maxdict, _brief.maxset = 3, 6, 6, 4, 4
_brief.maxstring, _brief.maxother = 60, 80


def format_value(value: Any) -> str:
    """`repr`, cut short."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"an integer of about {int(value.bit_length() * 0.30103) + 1} digits"
    if hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape):
        return f"{type(value).__name__} ({value.dtype}) of shape {tuple(value.shape)}"
    try:
        text = repr(value) if isinstance(value, bool | float) else _brief.repr(value)
    except Exception:  # a number inside with too many digits, or somebody's own __repr__
        text = f"a {type(value).__name__}"
    return one_line(text, 120)


def one_line(text: str, most: int = 400) -> str:
    """The text without line breaks and control characters, cut to a length."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
