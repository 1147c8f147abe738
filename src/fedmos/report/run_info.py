"""Read what a run records about itself: its algorithm, its selector, and whether it was started from Python.

No other module of reports and commands knows how these are recorded.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple


class RecordedChoice(NamedTuple):
    """The name of an algorithm or selector, and its fields as far as they are known."""

    name: str
    fields: Mapping[str, Any]


def algorithm_of(info: Mapping[str, Any]) -> RecordedChoice:
    """Return the algorithm of a run."""
    return _choice(info, "algorithm")


def selector_of(info: Mapping[str, Any]) -> RecordedChoice:
    """Return the selector of a run."""
    return _choice(info, "selection")


def _choice(info: Mapping[str, Any], option: str) -> RecordedChoice:
    structured = (info.get("option_values") or {}).get(option)
    if isinstance(structured, Mapping):
        return RecordedChoice(str(structured["name"]), structured["fields"])
    # Folders of earlier versions hold the repr only. Of its fields, reports need the step size.
    text = str(info.get(option))
    lr = re.search(r"\blr=([0-9.e+-]+)", text)
    return RecordedChoice(text.split("(")[0], {} if lr is None else {"lr": float(lr[1])})


def started_from_python(text: str) -> bool:
    """Whether the `config.toml` of a run records arguments of `fm.run`, from which the run cannot be built again."""
    try:
        return tomllib.loads(text).get("from_python") is True
    except (ValueError, RecursionError):  # reading the configuration names the fault
        return False
