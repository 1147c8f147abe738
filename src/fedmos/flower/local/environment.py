"""Environment variables of Flower's processes: offline, no proxy for loopback, short pauses."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""With these settings, Flower 1.41 connects to the SuperLink only."""

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""Variable for the seconds between a SuperExec's queries for tasks, from 0.01 to 60; 1 if not set."""

RETURNING_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Makes glibc return the memory of a piece of a message when it is freed; for a SuperLink and a SuperNode, which do not
compute."""

PID, LOG = "apps.pid", "apps.log"
"""Files in Flower's folder: the process id of the SuperExec, and its log if it is one of several."""

_LOOPBACK = "127.0.0.1,localhost"


def flower_environment(home: Path, poll: float, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables for Flower's processes.

    Args:
        home: The folder for Flower's configuration and installed apps.
        poll: Seconds between a SuperExec's queries for tasks.
        base: The variables to start from; by default, those of this process.
    """
    variables = dict(os.environ if base is None else base) | OFFLINE
    variables["FLWR_HOME"] = str(home)
    variables[POLL] = f"{min(max(poll, 0.01), 60.0):g}"
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)])
    variables["PYTHONUNBUFFERED"] = "1"
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, (variables.get(name), _LOOPBACK)))
    return variables


def flower_home(address: str, home: Path) -> Path:
    """Return Flower's folder for one of several endpoints that a SuperExec serves."""
    return home / address.replace(":", "-")
