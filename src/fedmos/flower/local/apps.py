"""Runs server and client apps for a SuperLink or SuperNode in Flower's process isolation, without their start-up time.

Flower's SuperExec starts a new Python for every message to a client, which imports PyTorch each time. This is the same
SuperExec, but its executor forks itself, with everything imported: an app starts in milliseconds, is a process of its
own as before, and ends with us.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn

import httpx
import torch._dynamo
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec.executor import ExecutionSpec, Executor, LaunchResult
from flwr.supercore.utils import get_flwr_home
from flwr.superlink.cli import flwr_serverapp
from flwr.supernode.cli import flwr_clientapp

import fedmos.config.schema
import fedmos.flower

from .die_with_parent import tie
from .environment import LOG, PID, POLL, home_of

_superexec: Any = import_module("flwr.supercore.superexec.run_superexec")
log = logging.getLogger("fedmos")

_APPS: dict[TaskType, Callable[[], None]] = {
    TaskType.CLIENT_APP: flwr_clientapp,
    TaskType.SERVER_APP: flwr_serverapp,
}
_PAUSE, _PATIENCE = 0.05, 20.0
_PRELOADED = (torch._dynamo, fedmos.config, fedmos.flower)
"""What apps need that takes seconds to import; torch.func imports the first when it is first used."""


class ForkingExecutor:
    """An executor of Flower's kind that forks itself for every task."""

    def __init__(self) -> None:
        self._servers: dict[int, ExecutionSpec] = {}
        self._clients: dict[int, float] = {}
        """When each has to be done."""

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
        sys.stdout.flush()
        if (process := os.fork()) == 0:
            _become(spec)
        if spec.task_type is TaskType.SERVER_APP:
            self._servers[process] = spec
        else:
            # A SuperNode has one task at a time: a client app from before is done, or waits for what will never come.
            self._clients = {earlier: min(end, monotonic() + _PATIENCE) for earlier, end in self._clients.items()}
            self._clients[process] = math.inf
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Take note of apps that have ended, and end those that should have.

        That a server app was killed is reported; Flower would wait a minute for it.
        """
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                process, status = ended
                self._clients.pop(process, None)
                spec = self._servers.pop(process, None)
                if spec is not None and os.WIFSIGNALED(status):
                    _report(spec, f"The server app was ended by {signal.Signals(os.WTERMSIG(status)).name}.")
        for process, end in self._clients.items():
            if monotonic() > end:
                self._clients[process] = monotonic() + _PATIENCE
                os.kill(process, signal.SIGTERM)

    def close(self) -> None:
        return


def _become(spec: ExecutionSpec) -> None:
    """Be the app of a task, and end with it."""
    exit_handler.registered_exit_handlers.clear()  # they are the executor's, and would close its connections
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    trust = ["--insecure"] if spec.insecure else []
    if spec.root_certificates_path is not None:
        trust = ["--root-certificates", spec.root_certificates_path]
    sys.argv = [str(spec.task_type), "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    sys.argv += [*trust, "--parent-pid", str(os.getppid())]
    _alone(_APPS[spec.task_type])


def _alone(work: Callable[[], None]) -> NoReturn:
    """In a fork: do the work, and end without a look at what the parent had in mind."""
    code = 1
    try:
        tie()
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


def _report(spec: ExecutionSpec, reason: str) -> None:
    """Tell the SuperLink that a task has failed."""
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
        log.warning("%s The SuperLink could not be told: %s", reason, error)
    finally:
        client.close()


def shorten_pauses() -> None:
    """Ask again soon for a part of a message that is still on its way; Flower waits 1 s, then 2 s, and so on.

    And have patience where Flower has none: a SuperNode may hand out a task a moment before the message it is about.
    """
    soon: dict[str, Any] = {"initial_backoff": _PAUSE, "backoff_cap": 1.0}
    client: Any = import_module("flwr.supernode.runtime.run_clientapp")
    grid: Any = import_module("flwr.superlink.grid.http_grid")
    pull, pull_all = client.pull_and_inflate_object_from_tree, grid.pull_objects
    client.pull_and_inflate_object_from_tree = partial(pull, **soon)
    grid.pull_objects = partial(pull_all, **soon)
    hasty = client.RuntimeHttpClient
    client.RuntimeHttpClient = type("PatientClient", (hasty,), {"PullMessages": _patient(hasty.PullMessages)})


def _patient(pull: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Repeats a request for messages while there is none."""

    def repeat(connection: Any, request: Any) -> Any:
        deadline = monotonic() + _PATIENCE
        while not (response := pull(connection, request)).messages_list and monotonic() < deadline:
            sleep(_PAUSE)
        return response

    return repeat


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch work without helpers: they would be missing in forks, which would wait for them forever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _executor(*choice: object, **options: object) -> Executor:
    return ForkingExecutor()


@dataclass(frozen=True)
class Place:
    """A SuperLink or SuperNode that apps are run for."""

    address: str
    authority: str | None
    """What to trust it by; None without TLS."""

    def serve(self, secret: bytes, home: Path) -> None:
        """Run its apps, which Flower installs in `home`."""
        home.mkdir(parents=True, exist_ok=True)
        (home / PID).write_text(str(os.getpid()), "ascii")
        os.environ["FLWR_HOME"] = str(home)
        _superexec.run_superexec(
            runtime_api_address=self.address,
            insecure=self.authority is None,
            root_certificates_path=self.authority,
            superexec_auth_secret=secret,
        )


def serve_all(places: Sequence[Place], secret: bytes, home: Path) -> None:
    """Serve each place in a fork of this process, and again if that ends."""
    serving: dict[int, Place] = {}
    waiting = list(places)
    while True:
        for place in waiting:
            if (process := os.fork()) == 0:
                _alone(partial(_serve_apart, place, secret, home_of(place.address, home)))
            serving[process] = place
        process, _ = os.wait()
        waiting = [serving.pop(process)]
        sleep(_PAUSE)


def _serve_apart(place: Place, secret: bytes, home: Path) -> None:
    """Serve one of several places, with a log of its own."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / LOG).open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    place.serve(secret, home)


def main() -> None:
    parser = argparse.ArgumentParser(prog="fedmos deploy apps", description=__doc__, allow_abbrev=False)
    parser.add_argument("--superlink", metavar="HOST:PORT", help="run server apps for it; with --root-certificates")
    parser.add_argument("--root-certificates", metavar="CA.PEM", help="what to trust the SuperLink by")
    parser.add_argument("--supernode", metavar="HOST:PORT", action="append", default=[], help="run client apps for it")
    parser.add_argument("--preload", metavar="CONFIG.toml", help="read a run's data now rather than at every message")
    parser.add_argument("--secret", type=Path, required=True, help="the file given as --superexec-auth-secret-file")
    given = parser.parse_args()
    if (given.superlink is None) != (given.root_certificates is None):
        parser.error("--superlink and --root-certificates must be given together")
    places = [Place(address, None) for address in given.supernode]
    if given.superlink is not None:
        places.append(Place(given.superlink, given.root_certificates))
    if not places:
        parser.error("at least one of --superlink and --supernode must be given")
    secret = load_superexec_auth_secret(str(given.secret))
    assert secret is not None
    os.environ.setdefault(POLL, "0.2")
    shorten_pauses()
    _superexec.get_executor = _executor
    if given.preload is not None:
        with one_thread():
            fedmos.flower.preload(given.preload)
    if len(places) == 1:
        places[0].serve(secret, get_flwr_home())
    serve_all(places, secret, get_flwr_home())


if __name__ == "__main__":
    main()
