"""An executor for Flower's SuperExec that runs each task in a fork of the current process.

Flower's own executor starts a Python process for every message to a client, which imports PyTorch each time. A fork has
everything imported and starts in milliseconds. It is a process of its own, and ends with its parent.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NoReturn

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.superlink.cli import flwr_serverapp
from flwr.supernode.cli import flwr_clientapp

from .die_with_parent import die_with_parent
from .flower_patches import clear_exit_handlers

_log = logging.getLogger("fedmos")

_APPS: dict[TaskType, Callable[[], None]] = {
    TaskType.CLIENT_APP: flwr_clientapp,
    TaskType.SERVER_APP: flwr_serverapp,
}
_GRACE_PERIOD = 20.0
"""Seconds after which a superseded client app is terminated."""


class ForkingExecutor:
    """Runs every task in a fork; implements the protocol `Executor` of Flower's SuperExec."""

    def __init__(self) -> None:
        self._servers: dict[int, ExecutionSpec] = {}
        """Server apps, by process id."""
        self._clients: dict[int, float] = {}
        """Client apps by process id, with the time at which each is terminated."""

    def get_eligible_capacity(
        self,
        supported_task_types: set[TaskType],
        *,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> tuple[set[TaskType], set[str]]:
        return supported_task_types & set(_APPS), set()

    def wait_for_capacity(
        self,
        task_type: TaskType | None = None,
        *,
        fab_hash: str | None = None,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> None:
        return

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a task."""
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            run_and_exit(lambda: _run_app(spec))
        if spec.task_type is TaskType.SERVER_APP:
            self._servers[pid] = spec
        else:
            # A SuperNode has one task at a time, so an earlier client app has finished or will never get its input.
            limit = monotonic() + _GRACE_PERIOD
            self._clients = {earlier: min(end, limit) for earlier, end in self._clients.items()}
            self._clients[pid] = math.inf
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Collect apps that have ended, and terminate superseded ones.

        A server app that was killed is reported to the SuperLink, which would otherwise notice after a minute.
        """
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self._clients.pop(pid, None)
                spec = self._servers.pop(pid, None)
                if spec is not None and os.WIFSIGNALED(status):
                    _report_failure(spec, f"The server app was ended by {signal.Signals(os.WTERMSIG(status)).name}.")
        for pid, end in self._clients.items():
            if monotonic() > end:
                self._clients[pid] = monotonic() + _GRACE_PERIOD
                os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        return


def run_and_exit(work: Callable[[], None]) -> NoReturn:
    """In a forked process: run a function, and exit without the parent's cleanup."""
    code = 1
    try:
        die_with_parent()
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_app(spec: ExecutionSpec) -> None:
    """In a forked process: run the app of a task, as Flower's command of the same name does."""
    clear_exit_handlers()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    tls = ["--insecure"] if spec.insecure else []
    if spec.root_certificates_path is not None:
        tls = ["--root-certificates", spec.root_certificates_path]
    sys.argv = [str(spec.task_type), "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    sys.argv += [*tls, "--parent-pid", str(os.getppid())]
    _APPS[spec.task_type]()


def _report_failure(spec: ExecutionSpec, reason: str) -> None:
    """Report to the SuperLink that a task has failed."""
    client = RuntimeHttpClient.from_server_address(
        server_address=spec.runtime_api_address,
        insecure=spec.insecure,
        root_certificates=spec.root_certificates_path,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            RuntimeTokenHttpInterceptor(spec.token),
        ],
    )
    try:
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=reason))
    except httpx.HTTPError as error:
        _log.warning("%s The failure could not be reported to the SuperLink: %s", reason, error)
    finally:
        client.close()
