"""The processes of a comparison: they end with their parent, and save their runs when it stops them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

_STOPPED = 143


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in the processes that are started in the block: a terminal sends it to all processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop_workers() -> None:
    """Tell every worker to save its runs and to end."""
    for worker in multiprocessing.active_children():
        worker.terminate()


def start_worker() -> None:
    """Use one thread, and end with the parent process, even if that is killed."""
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # runs continue from their checkpoints


@contextmanager
def stopped_by_parent() -> Iterator[None]:
    """In a worker, interrupt the block when the parent stops it; the process ends after the block has saved its runs.

    Does nothing in other processes.
    """
    if multiprocessing.parent_process() is None:
        yield
        return
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if not stopped:  # further signals must not interrupt the saving
            stopped = True
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        if not stopped:
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if stopped:
            os._exit(_STOPPED)
