"""Comparison of a run with the one in its folder, before it is resumed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

from .info import RunInfo
from .spec import RunSpec
from .values import first_difference, structured

_MEASURED = ("clients", "parameters", "model", "data")
"""Entries beside the options that must be the same."""

_READABLE = 300
"""Characters: where the text of an option is longer, an error names the field that differs instead."""


class _Change(NamedTuple):
    name: str
    sentence: str


def check_unchanged(folder: Path, before: RunInfo, now: RunInfo) -> None:
    """Refuse to resume a run with other options, another model or other data.

    Raises:
        ValueError: naming the first option that differs, with both values.
    """
    for change in _changes(before, now):
        raise ValueError(
            f"Cannot resume the run in {folder} because its '{change.name}' {change.sentence}; use a new folder"
        )
    for path in _changed_files(before.own_code or {}, now.own_code or {}):
        raise ValueError(
            f"Cannot resume the run in {folder} because {path}, which defines its own classes, has changed; use a new "
            "folder"
        )


def check_rounds(folder: Path, played: int, rounds: int) -> None:
    """Refuse to resume a run that has played more than `rounds` rounds, which cannot be taken back.

    Raises:
        ValueError: naming both numbers.
    """
    if played > rounds:
        raise ValueError(
            f"Cannot resume the run in {folder} with 'rounds' = {rounds} because it has played {played} rounds; use "
            f"at least {played}, or a new folder"
        )


def _changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield the files of own classes whose content differs from that in the earlier part.

    A file that has another path now is compared with the files of its name.
    """
    for path, sha256 in now.items():
        of_name = [old for other, old in before.items() if Path(other).name == Path(path).name]
        known = [before[path]] if path in before else of_name
        if known and sha256 not in known:
            yield path


def _changes(before: RunInfo, now: RunInfo) -> Iterator[_Change]:
    compare = _compare_text if before.option_values is None else _compare_value
    for name in now.option_values or {}:
        change = compare(name, before, now)
        if change is not None:
            yield change
    for name in _MEASURED:
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            yield _Change(name, f"is {old!r}, got {new!r}")


def _compare_value(name: str, before: RunInfo, now: RunInfo) -> _Change | None:
    """Compare an option by value. An option that the folder does not record had its default."""
    old, new = before.option_values or {}, now.option_values or {}
    difference = first_difference(old[name] if name in old else structured(_default(name)), new[name])
    if difference is None:
        return None
    old_text, new_text = repr(before.options.get(name)), repr(now.options.get(name))
    if old_text != new_text and max(len(old_text), len(new_text)) <= _READABLE:
        return _Change(name, f"is {old_text}, got {new_text}")
    return _Change(".".join((name, *difference.path)), str(difference))


def _compare_text(name: str, before: RunInfo, now: RunInfo) -> _Change | None:
    """Compare an option with a folder of an earlier version, which records the text only."""
    old, new = before.options.get(name), now.options.get(name)
    if name == "system" and isinstance(old, str):
        old = re.sub(r"\bTable\(", "PerClient(", old)  # the class has been renamed
    return None if old == new else _Change(name, f"is {old!r}, got {new!r}")


def _default(name: str) -> Any:
    default = next(f.default for f in fields(RunSpec) if f.name == name)
    return None if default is MISSING else default
