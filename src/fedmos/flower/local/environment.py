"""The environment that Flower's processes run in: offline, loopback not through a proxy, short waits."""

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
"""Settings under which Flower 1.41 reaches nothing but the SuperLink."""

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""How often SuperExec asks for work, in seconds from 0.01 to 60; 1 if not set."""

PID, LOG = "apps.pid", "apps.log"
"""Files in Flower's folder: which process runs apps there, and what it said where it is one of several."""

_LOOPBACK = "127.0.0.1,localhost"


def environment(home: Path, poll: float, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """For Flower's processes: `home` is where Flower keeps its configuration and installed apps."""
    made = dict(os.environ if base is None else base) | OFFLINE
    made["FLWR_HOME"] = str(home)
    made[POLL] = f"{min(max(poll, 0.01), 60.0):g}"
    made["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), made.get("PATH", os.defpath)])
    made["PYTHONUNBUFFERED"] = "1"
    for name in ("NO_PROXY", "no_proxy"):
        made[name] = ",".join(filter(None, (made.get(name), _LOOPBACK)))
    return made


def home_of(address: str, home: Path) -> Path:
    """Flower's folder of one of several places that apps are run for."""
    return home / address.replace(":", "-")
