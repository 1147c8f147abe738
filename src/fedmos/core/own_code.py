"""The files of classes and functions of the user that configurations name, with a hash of their content."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn


class OwnFile(NamedTuple):
    """A file that was loaded, and the SHA-256 hash of what was in it."""

    path: Path
    sha256: str


_FILES: dict[str, OwnFile] = {}
"""The files of the user's modules, by the name of the module."""


def register_own_file(module: str, file: OwnFile) -> None:
    """Record that a module was loaded from a file that a configuration names."""
    _FILES[module] = file


def own_files(values: Iterable[Any]) -> dict[str, str]:
    """Return the files from which the classes and functions of some values were loaded, with their hashes.

    Args:
        values: Objects, functions, or lists and mappings of them.
    """
    files = {_FILES[module] for value in values for module in _modules(value) if module in _FILES}
    return {str(file.path): file.sha256 for file in sorted(files)}


def _modules(value: Any) -> Iterator[str]:
    """Yield the names of the modules that define a value's class or function, and those of its parts."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _modules(item)
        return
    if isinstance(value, functools.partial):
        yield from _modules(value.func)
    if isinstance(value, nn.Module):
        yield from {base.__module__ for part in value.modules() for base in type(part).__mro__}
        return
    kind = value if isinstance(value, type) else type(value)
    yield from (base.__module__ for base in kind.__mro__)
    if isinstance(name := getattr(value, "__module__", None), str):
        yield name
