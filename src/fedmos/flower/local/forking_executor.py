"""The accelerator of apps: an executor for Flower's SuperExec that runs each task in a fork of the current process.

Flower's own executor starts a Python process for every message to a client, which imports PyTorch each time. A fork has
everything imported and starts in milliseconds. It is a process of its own, and ends with its parent.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import httpx
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.exit import exit_handler
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec.executor import LaunchResult

from .forks import run_and_exit
from .pinned_app import CLIENT_APP, AppGuard, AppRefusedError
from .programs import load_program

_log = logging.getLogger("fedmos")

_CLIENT_APP, _SERVER_APP = CLIENT_APP, "flwr-serverapp"
"""The types of tasks, each named like the program of Flower that runs it."""
_APPS: dict[str, Callable[[], None]] = {name: load_program(name) for name in (_CLIENT_APP, _SERVER_APP)}
_GRACE_PERIOD = 20.0
"""Seconds after which a superseded client app is terminated."""


class ForkingExecutor:
    """Runs every task in a fork; implements the protocol `Executor` of Flower's SuperExec.

    Args:
        guard: Refuses other apps than the one that a client has installed; None to run any.
    """

    def __init__(self, guard: AppGuard | None = None) -> None:
        self._guard = guard
        self._servers: dict[int, Any] = {}
        """Server apps, by process id."""
        self._clients: dict[int, float] = {}
        """Client apps by process id, with the time at which each is terminated."""

    def get_eligible_capacity(
        self,
        supported_task_types: set[str],
        *,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> tuple[set[str], set[str]]:
        return {kind for kind in supported_task_types if kind in _APPS}, set()

    def wait_for_capacity(
        self,
        task_type: str | None = None,
        *,
        fab_hash: str | None = None,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> None:
        return

    def launch(self, spec: Any) -> Any:
        """Start a task."""
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            run_and_exit(lambda: _run_app(spec, self._guard))
        if spec.task_type == _SERVER_APP:
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


def _run_app(spec: Any, guard: AppGuard | None) -> None:
    """In a forked process: run the app of a task, as Flower's command of the same name does."""
    if guard is not None:
        if spec.task_type != CLIENT_APP:
            raise AppRefusedError(f"Refused to run {spec.task_type}: this client runs client apps only")
        guard.enforce()
    exit_handler.registered_exit_handlers.clear()  # inherited; they would close the parent's connections
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    tls = ["--insecure"] if spec.insecure else []
    if spec.root_certificates_path is not None:
        tls = ["--root-certificates", spec.root_certificates_path]
    sys.argv = [str(spec.task_type), "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    sys.argv += [*tls, "--parent-pid", str(os.getppid())]
    _APPS[spec.task_type]()


def _report_failure(spec: Any, reason: str) -> None:
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
        client.PushTaskOutput(PushTaskOutputRequest(sub_status="failed", details=reason))
    except httpx.HTTPError as error:
        _log.warning("%s The failure could not be reported to the SuperLink: %s", reason, error)
    finally:
        client.close()
