"""The process group that a launcher such as `torchrun` starts: joining and leaving it."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import itertools
import logging
import os
import signal
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from ..core.formatting import format_value

_MOST_MINUTES = 100_000

_joined = itertools.count()
"""The number of groups that this process has joined."""

_log = logging.getLogger("fedmos")


def join() -> None:
    """Join the process group of the launcher, if a launcher such as torchrun started this process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ or dist.is_initialized():
        return
    backend = "gloo"
    if torch.cuda.is_available():  # nccl connects at its first use, of which `Ranks.joined` decides
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    timeout = _timeout()
    _end_with_launcher()
    # torch.func imports this module at its first use. If that happens after the group is made, the module keeps the
    # group alive: its threads survive `leave` and occasionally abort the process at exit.
    importlib.import_module("torch._dynamo")
    atexit.register(leave)  # threads of a group that is alive at exit may abort the process, after all its work
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend, timeout=timeout)
        return
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    # The launcher's store outlives its workers and their groups: a group must not find the addresses of earlier ones.
    host, port, size = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"])
    shared = TCPStore(host, port, size, is_master=False, timeout=timeout)
    store = PrefixStore(f"fedmos-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{next(_joined)}", shared)
    dist.init_process_group(backend, store=store, rank=int(os.environ["RANK"]), world_size=size, timeout=timeout)


def _timeout() -> timedelta:
    """Return how long a rank waits for another: the minutes in the environment variable FEDMOS_RANK_TIMEOUT, or 10."""
    given = os.environ.get("FEDMOS_RANK_TIMEOUT") or "10"
    with suppress(ValueError):
        minutes = float(given)
        if 0 < minutes <= _MOST_MINUTES:
            return timedelta(minutes=minutes)
    raise ValueError(
        f"run: FEDMOS_RANK_TIMEOUT must be a number of minutes > 0 and ≤ {_MOST_MINUTES:,}, got {format_value(given)}"
    )


def leave() -> None:
    """Leave the process group."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _end_with_launcher() -> None:
    """Have the system end this process when its launcher dies."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    except (OSError, AttributeError):  # not Linux
        _log.debug("This system cannot end a process together with its parent")
