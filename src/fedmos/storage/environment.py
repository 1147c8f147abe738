"""What a run ran on."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from typing import Any

import numpy
import torch

from ..core.version import __version__


def environment() -> dict[str, Any]:
    """Versions, machine, command and the state of the source, as of now."""
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
    """Commit and whether anything is changed, of the repository we are in; None outside of one."""
    commit, changes = _ask("rev-parse", "HEAD"), _ask("status", "--porcelain")
    return None if commit is None else {"commit": commit, "changed": None if changes is None else bool(changes)}


def _ask(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
