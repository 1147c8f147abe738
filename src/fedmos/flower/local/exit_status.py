"""The exit status of Flower's programs if the other side refuses them.

Flower ends a process whose requests are answered by 401 with an interrupt to itself, "terminated gracefully", and
status 0. Supervisors such as systemd then take it for a process that was stopped on purpose. This module imports
neither fedmos nor PyTorch, so that a SuperNode can load it by its path.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

_CLEANUP = 4.0
"""Seconds for Flower's cleanup; Flower ends the process itself after 5 s."""


@contextmanager
def failure_if_refused(reason: str) -> Iterator[None]:
    """Print a reason and exit with status 1 if Flower ends this process because its requests are refused.

    The interrupt that a process sends to itself is seen by a hook of `sys.addaudithook`; those of others are not.
    """
    process, running, refused = os.getpid(), True, False

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal refused
        if event != "os.kill" or not running or refused:
            return
        if os.getpid() == process and arguments[:2] == (process, signal.SIGINT):
            refused = True
            print(reason, file=sys.stderr, flush=True)
            timer = Timer(_CLEANUP, os._exit, (1,))
            timer.daemon = True
            timer.start()

    sys.addaudithook(hook)
    try:
        yield
    except SystemExit as end:
        if refused and not end.code:
            raise SystemExit(1) from None
        raise
    finally:
        running = False
