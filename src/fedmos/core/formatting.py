"""Short one-line representations of values for error messages."""

from __future__ import annotations

import reprlib
from typing import Any

_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxlist, _brief.maxtuple, _brief.maxdict, _brief.maxset = 3, 6, 6, 4, 4
_brief.maxstring, _brief.maxother = 60, 80


def format_value(value: Any) -> str:
    """Return a shortened `repr`."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"an integer of about {int(value.bit_length() * 0.30103) + 1} digits"
    if hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape):
        return f"{type(value).__name__} ({value.dtype}) of shape {tuple(value.shape)}"
    try:
        text = repr(value) if isinstance(value, bool | float) else _brief.repr(value)
    except Exception:  # a nested integer with too many digits, or a failing __repr__
        text = f"a {type(value).__name__}"
    return one_line(text, 120)


def one_line(text: str, most: int = 400) -> str:
    """Return the text without line breaks and control characters, cut to `most` characters."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
