"""Description of the environment of a run: versions, machine, command and source."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from typing import Any

import numpy
import torch

from ..core.version import __version__


def describe_environment() -> dict[str, Any]:
    """Describe versions, machine, command and the state of the source at this moment."""
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": sys.argv,
        "versions": {
            "fedmos": __version__,
            "torch": str(torch.__version__),
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "host": platform.node(),
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    """Return the commit of the working directory and whether files are changed; None outside of a repository."""
    commit, changes = _git_output("rev-parse", "HEAD"), _git_output("status", "--porcelain")
    return None if commit is None else {"commit": commit, "changed": None if changes is None else bool(changes)}


def _git_output(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
