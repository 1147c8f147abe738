"""The app that a client has installed itself: the only one whose code its processes run.

The server sends an app, a file NAME.fab, with every run, and Flower's client would install and run it. A client that
has pinned an app runs the pinned one if the server's has the same content, and refuses every other app before any of
its code runs. The refusal is a hook of `sys.addaudithook`, which is public, so it does not depend on the
version of Flower.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

APPS = "apps"
"""Flower's folder of installed apps, in its home."""
CLIENT_APP = "flwr-clientapp"
_TIMEOUT = 120.0
_WRAPPER = """\
#!{python} -P
import sys

sys.path[:0] = {paths!r}
from fedmos.flower.local.pinned_app import run_guarded

run_guarded({program!r}, {home!r}, {installed!r}, {further!r}, {audit!r})
"""


class AppRefusedError(RuntimeError):
    """An app, or code, that the client has not installed."""


def build_app(app: Path, folder: Path) -> Path:
    """Build the file NAME.fab of an app's folder in another folder, as `flwr run` builds it for the server.

    Raises:
        RuntimeError: If Flower refuses the app.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        _flwr(Path(made), made, "build", "--app", str(app.absolute()))
        (found,) = Path(made).glob("*.fab")
        return found.replace(folder / found.name)


def hash_of(fab: Path) -> str:
    """Return the hash of an app's file, which Flower shows as the run's `fab-hash`."""
    return hashlib.sha256(fab.read_bytes()).hexdigest()


def install_app(fab: Path, home: Path) -> Path:
    """Install an app in place of all others in Flower's folder `home`; returns the folder of its code.

    Raises:
        RuntimeError: If Flower refuses the file, for example because its content does not have the hash in its name.
    """
    shutil.rmtree(home / APPS, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    _flwr(home, str(home), "install", str(fab.absolute()))
    (installed,) = (home / APPS).iterdir()
    return installed


def _flwr(home: Path, folder: str, *arguments: str) -> None:
    """Run a command of `flwr` in a folder."""
    from .environment import flower_environment
    from .programs import program_path

    command = [program_path("flwr"), *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=flower_environment(home, 1.0),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
    if done.returncode:
        said = [line.strip("╭╮╰╯─│ ") for line in (done.stderr.strip() or done.stdout.strip()).splitlines()]
        reason = " ".join(line for line in said if line and line != "Error") or "no reason given"
        raise RuntimeError(f"Cannot use the app because `flwr {arguments[0]}` fails: {reason[:300]}")


@dataclass(frozen=True)
class AppGuard:
    """Lets a process run the code of this Python installation and of one installed app, and no other.

    Args:
        home: Flower's folder, in which it installs apps.
        installed: The folder of the app that may run.
        further: Further folders of code that may run: that of the client's own configuration.
        audit: The client's audit log, which gets a line for a refused app.
    """

    home: Path
    installed: Path
    further: Sequence[Path] = ()
    audit: Path | None = None

    def enforce(self) -> None:
        """Install the hook in this process, for good."""
        sys.addaudithook(self.hook())

    def hook(self) -> Callable[[str, tuple[Any, ...]], None]:
        """Return a function for `sys.addaudithook` that refuses what may not run."""
        roots, apps = self._roots(), _forms(self.home / APPS)
        own = _forms(self.installed)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "exec":
                path = _path(getattr(arguments[0], "co_filename", ""))
            elif event == "import":
                path = _path(arguments[1])
            elif event == "os.mkdir":
                path = _path(arguments[0])
                if path.startswith(apps) and not (path + os.sep).startswith(own):
                    self._refuse(f"the app {Path(path).name} that the server has sent")
                return
            else:
                return
            if path and not path.startswith(roots):
                self._refuse(f"the code of {path}")

        return hook

    def _roots(self) -> tuple[str, ...]:
        """Return the folders whose code may run; none that contains Flower's folder of apps."""
        trusted = [*sys.path, sys.prefix, sys.base_prefix, str(Path(__file__).parents[3]), *map(str, self.further)]
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        apps = _forms(self.home / APPS)
        forms = {form for path in [*trusted, *([cache] if cache else [])] if path for form in _forms(Path(path))}
        return (
            *sorted(form for form in forms if not any(one.startswith(form) for one in apps)),
            *_forms(self.installed),
        )

    def _refuse(self, what: str) -> None:
        text = f"Refused {what}: this client runs {self.installed.name} only"
        if self.audit is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = json.dumps({"time": now, "asked": "app", "outcome": "refused", "reason": text}) + "\n"
            self.audit.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(self.audit, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
                file.write(line)
        raise AppRefusedError(text)


def _path(given: Any) -> str:
    """Return the absolute path in the argument of an event; an empty text for code that is in no file."""
    try:
        path = os.fsdecode(given)
    except TypeError:
        return ""
    return "" if not path or path.startswith("<") else os.path.abspath(path)


def _forms(folder: Path) -> tuple[str, ...]:
    """Return the beginnings of paths in a folder, as it is written and without links."""
    return tuple({os.path.abspath(folder) + os.sep, os.path.realpath(folder) + os.sep})


def write_programs(guard: AppGuard, folder: Path) -> Path:
    """Write programs with the names of Flower's that start apps, for a SuperExec that finds them by PATH.

    The one for client apps enforces the guard. All others refuse: a client runs client apps only.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    names = [entry.name for entry in distribution("flwr").entry_points if entry.group == "console_scripts"]
    for name in (name for name in names if name.startswith("flwr-")):
        paths = [str(Path(__file__).parents[3])]
        audit = None if guard.audit is None else str(guard.audit)
        further = [str(path) for path in guard.further]
        text = _WRAPPER.format(
            python=sys.executable,
            paths=paths,
            program=name,
            home=str(guard.home),
            installed=str(guard.installed),
            further=further,
            audit=audit,
        )
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o700)
    return folder


def run_guarded(program: str, home: str, installed: str, further: Sequence[str], audit: str | None) -> None:
    """Run a program of Flower under a guard, in this process."""
    from .programs import load_program

    if program != CLIENT_APP:
        raise AppRefusedError(f"Refused to run {program}: this client runs client apps only")
    log = None if audit is None else Path(audit)
    AppGuard(Path(home), Path(installed), tuple(map(Path, further)), log).enforce()
    sys.argv[0] = program
    load_program(program)()
