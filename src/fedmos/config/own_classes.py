"""Classes and functions of the user in configurations: "mine.py:FedSAM" or "package.module:FedSAM".

Naming one executes the code of its file.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.formatting import format_value, one_line
from ..core.own_code import OwnFile, register_own_file
from ..core.validation import suggest
from .errors import ConfigError

_OWN = re.compile(r"(?P<source>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")
_KEYS = ("name", "loss", "metrics", "space")
"""Keys of tables under which a class or function of the user can be named."""
_SHORT = (
    "algorithm", "selection", "model", "availability", "lr_decay", "local", "uplink", "downlink", "privacy",
    "aggregation", "attack", "partition", "data", "codec", "codecs",
)  # fmt: skip
"""Keys whose value can be a name in place of a table."""
_MAX_BYTES = 2**24
_MAX_NAME = 4000
_NEIGHBOURS: dict[str, Path] = {}
"""The modules that files of the user have imported from their own folders, with these folders."""


def is_own(name: Any) -> bool:
    """Whether a name is that of a class or function of the user."""
    return _match(name) is not None


def plain_name(name: str) -> str:
    """Return the name without its file or module, e.g. "FedSAM"; the name itself if it is no name of the user's."""
    match = _match(name)
    return name if match is None else match["name"]


def _match(name: Any) -> re.Match[str] | None:
    short = isinstance(name, str) and len(name) <= _MAX_NAME and name.isprintable()
    return _OWN.fullmatch(name) if short else None


def with_absolute_paths(table: Any, folder: Path) -> Any:
    """Return a table in which the files of the user's classes, relative to `folder`, have absolute paths."""
    return with_sources(table, lambda source: str((folder / source).absolute()))


def with_sources(table: Any, replaced: Callable[[str], str]) -> Any:
    """Return a table in which `replaced` gives the file of every class of the user that is in a file."""

    def rewritten(value: Any, named: bool, short: bool = False) -> Any:
        """`named`: all texts of the value can be names; `short`: texts in place of tables can be."""
        if isinstance(value, Mapping):
            inner = short and "name" not in value  # codecs by the name of the vector
            return {key: rewritten(item, named or key in _KEYS, inner or key in _SHORT) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [rewritten(item, named, short) for item in value]
        named = named or short
        match = _match(value) if named else None
        if match is None or not match["source"].endswith(".py"):
            return value
        return f"{replaced(match['source'])}:{match['name']}"

    return rewritten(table, False)


def own_sources(table: Any) -> dict[str, str]:
    """Return the files of the user's classes that a table names, with the hash of their content; "" if missing."""
    found: dict[str, str] = {}

    def hashed(source: str) -> str:
        path = Path(source)
        found[source] = _hash(path.read_bytes()) if path.is_file() else ""
        return source

    with_sources(table, hashed)
    return found


def resolve(where: str, name: str) -> Any:
    """Return the class or function of the user that has this name; a relative path is one of the current folder.

    Args:
        where: The place in the configuration, for errors.
        name: "FILE.py:NAME" or "package.module:NAME".

    Raises:
        ConfigError: If the file or module cannot be loaded, or has no such name.
    """
    match = _match(name)
    if match is None:
        raise ConfigError(f"{where}: must look like 'mine.py:Name' or 'package.module:Name', got {format_value(name)}")
    source, attribute = match["source"], match["name"]
    module = _file_module(where, Path(source)) if source.endswith(".py") else _installed_module(where, source)
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"{where}: {one_line(source, 200)} has no {attribute}{suggest(attribute, public)}")
    return getattr(module, attribute)


def _file_module(where: str, path: Path) -> ModuleType:
    """Load a file as a module of its own; a file that has not changed is loaded once."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{where}: there is no file {one_line(str(path.absolute()), 200)}; use a path relative to the "
            "configuration file"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: Cannot read {one_line(str(path), 200)}: {error}") from None
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{where}: Cannot read {one_line(str(path), 200)}: longer than {_MAX_BYTES:,} bytes")
    sha256 = _hash(content)
    name = f"fedmos_own_{_hash(str(path.absolute()).encode())[:8]}_{sha256[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _ContentLoader(str(path.absolute()), content)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        with _loading(where, str(path)), _importable(path.absolute().parent):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    register_own_file(name, OwnFile(path.absolute(), sha256))
    return module


class _ContentLoader(SourceLoader):
    """Loads a module from the content that was hashed, without a cache of its bytecode."""

    def __init__(self, path: str, content: bytes) -> None:
        self._path, self._content = path, content

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        return self._content

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("no cache")


def _installed_module(where: str, name: str) -> ModuleType:
    with _loading(where, name):
        module = importlib.import_module(name)
    file = getattr(module, "__file__", None)
    if file is not None and name.split(".")[0] not in ("fedmos", "torch"):
        register_own_file(name, OwnFile(Path(file).absolute(), _hash(Path(file).read_bytes())))
    return module


@contextmanager
def _loading(where: str, source: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the user's code may raise anything
        what = one_line(f"{type(error).__name__}: {error}", 300)
        raise ConfigError(f"{where}: Cannot load {one_line(source, 200)} because it raises {what}") from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let the block import modules of a folder, as a script of that folder can.

    A module of the same name that was imported from another folder is not taken for it.
    """
    for name, other in list(_NEIGHBOURS.items()):
        root = name.partition(".")[0]
        if other != folder and ((folder / f"{root}.py").exists() or (folder / root).is_dir()):
            sys.modules.pop(name, None)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        new = {name: getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - before}
        _NEIGHBOURS.update({name: folder for name, file in new.items() if file and folder in Path(file).parents})
        with suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(str(folder))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
