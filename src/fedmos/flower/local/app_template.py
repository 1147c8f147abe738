"""Creates a Flower app, to be started by `flwr run`, from a fedmos configuration."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

from ...config.own_classes import plain_name, with_sources
from ...config.text import parse_toml, read_table
from ...core.version import __version__
from ...storage.files import is_occupied
from ...storage.toml import dumps

CONFIGURATION = "run.toml"
_APPS = ("server_app.py", "client_app.py")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")

_PROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "{algorithm} with {selection}, by fedmos"
dependencies = ["fedmos[flower]>={version}"]

[tool.flwr.app]
publisher = "fedmos"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Settings that `flwr run --run-config 'out="/srv/run"'` can replace: the run folder, and the server's file with [test].
[tool.flwr.app.config]
out = "{out}"
test = ""
"""

_APP = '''\
"""The {side} app; {configuration} configures it."""

from pathlib import Path

from fedmos.flower import {side}_app

app = {side}_app(Path(__file__).with_name("{configuration}"))
'''


def with_local_files(configuration: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a configuration that names its own classes in files beside it, and these files by name."""
    names: dict[str, str] = {}
    contents: dict[str, str] = {}

    def local(source: str) -> str:
        if source not in names:
            stem = re.sub(r"\W", "_", Path(source).stem)
            taken = {*names.values(), "__init__.py", *_APPS}
            names[source] = next(n for i in count() if (n := f"{stem}{i or ''}.py") not in taken)
            contents[names[source]] = Path(source).read_text("utf-8")
        return names[source]

    return with_sources(configuration, local), contents


def write_app(folder: Path, configuration: dict[str, Any], out: str = "") -> Path:
    """Write the files of a Flower app, with a copy of the files of own classes.

    Args:
        folder: A new or empty folder. Its name becomes the app's name.
        configuration: The configuration of the run, as for `fedmos run`.
        out: The default of the server's run folder; `flwr run --run-config` overrides it.

    Returns:
        The folder.

    Raises:
        ValueError: If Flower does not accept the folder's name as an app's name.
        FileExistsError: If the folder is not empty.
    """
    name = folder.absolute().name
    if not _NAME.fullmatch(name):
        raise ValueError(
            "deploy init: the name of 'DIR' must be a letter followed by at most 31 letters, digits and hyphens, "
            f"got {name!r}"
        )
    if is_occupied(folder):
        raise FileExistsError(f"Cannot write an app into {folder} because it is not empty; use another folder")
    for path, content in _app_files(name, configuration, out).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, "utf-8")
    return folder


def keep_app(folder: Path, configuration: dict[str, Any]) -> Path:
    """Write an app, or check that the one in the folder has the same configuration and own code.

    Returns:
        The configuration in the app.

    Raises:
        ValueError: If it has another one, which a deployment that is continued would use without a word.
    """
    name = folder.absolute().name
    kept = folder / _package(name) / CONFIGURATION
    if not folder.exists():
        write_app(folder, configuration)
        return kept
    files = _app_files(name, configuration, "")
    new, old = parse_toml(files.pop(f"{_package(name)}/{CONFIGURATION}"), "configuration"), read_table(kept)
    changed = sorted(key for key in {*new, *old} if new.get(key) != old.get(key))
    if changed:
        raise ValueError(
            f"Cannot continue the deployment in {folder.parent} because its configuration, {kept}, has another "
            f"{', '.join(map(repr, changed))}; use the same configuration, another folder, or change that file"
        )
    for path, content in files.items():
        own = folder / path
        is_own_code = own.parent == kept.parent and own.name not in _APPS
        if is_own_code and (not own.exists() or own.read_text("utf-8") != content):
            raise ValueError(
                f"Cannot continue the deployment in {folder.parent} because {own} differs from the code of this "
                "configuration; use the same code, another folder, or change that file"
            )
    return kept


def _package(name: str) -> str:
    """Return the name of the Python package of an app."""
    return name.replace("-", "_").lower()


def _app_files(name: str, configuration: dict[str, Any], out: str) -> dict[str, str]:
    """Return the contents of an app's files by path."""
    package = _package(name)
    configuration, own = with_local_files(configuration)
    files = {
        "pyproject.toml": _PROJECT.format(
            name=name,
            package=package,
            version=__version__,
            out=out,
            algorithm=plain_name(configuration["algorithm"]["name"]),
            selection=plain_name(configuration["selection"]["name"]),
        ),
        f"{package}/__init__.py": "",
        f"{package}/{CONFIGURATION}": dumps(configuration),
        **{f"{package}/{file}": content for file, content in own.items()},
    }
    for side in ("server", "client"):
        files[f"{package}/{side}_app.py"] = _APP.format(side=side, configuration=CONFIGURATION)
    return files
