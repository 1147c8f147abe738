"""Runs server and client apps for a SuperLink or for SuperNodes with process isolation.

The program replaces `flower-superexec`. It forks itself for every task instead of starting Python anew. With `--plain`,
and on a version of Flower that `flower_patches` does not know, it runs `flower-superexec` as it is.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from time import sleep
from typing import Any

import torch

from . import flower_patches
from .app_template import CONFIGURATION
from .environment import LOG, PID, POLL, flower_home
from .exit_status import failure_if_refused
from .forks import run_and_exit
from .pinned_app import AppGuard, install_app, write_programs
from .programs import load_program

MakeExecutor = Callable[[AppGuard | None], Any]
_RESTART_PAUSE = 0.05
_LOCK = "apps.lock"
_PRELOADED = ("torch._dynamo", "fedmos.config.schema", "fedmos.flower.client", "fedmos.flower.server")
"""Modules that apps need and that take seconds to import; torch.func imports the first when it is first used."""


@dataclass(frozen=True)
class Pin:
    """The app that a client has installed itself."""

    fab: Path
    further: tuple[Path, ...] = ()
    """Further folders of code that may run."""
    audit: Path | None = None
    """The client's audit log."""
    client_file: Path | None = None
    """The client's own file."""

    def install(self, home: Path) -> AppGuard:
        """Install the app, and let programs that are found by PATH run no other."""
        guard = AppGuard(home, install_app(self.fab, home), self.further, self.audit)
        os.environ["PATH"] = os.pathsep.join([str(write_programs(guard, home / "programs")), os.environ["PATH"]])
        return guard

    def preload(self, installed: Path) -> None:
        """Create the model and read the data of the installed app, if it is one of `fedmos deploy init`."""
        for config in installed.glob(f"*/{CONFIGURATION}"):
            preload(config, self.client_file)


@dataclass(frozen=True)
class Endpoint:
    """The runtime API of a SuperLink or SuperNode."""

    address: str
    authority: str | None
    """Path of the certificate that authenticates the endpoint; None without TLS."""
    pin: Pin | None = None
    """The app that may run; None for any that the server sends."""

    def serve(self, secret: Path, home: Path, make_executor: MakeExecutor | None = None) -> None:
        """Run the apps of this endpoint; Flower installs them in `home`."""
        home.mkdir(parents=True, exist_ok=True)
        if self.pin is not None:
            hold(home)
        (home / PID).write_text(str(os.getpid()), "ascii")
        os.environ["FLWR_HOME"] = str(home)
        self._use_apps(home.absolute(), make_executor)
        tls = ["--insecure"] if self.authority is None else ["--root-certificates", self.authority]
        sys.argv = ["flower-superexec", "--runtime-api-address", self.address, *tls]
        sys.argv += ["--superexec-auth-secret-file", str(secret)]
        with failure_if_refused(f"The process at {self.address} refuses this one: {secret} is not the secret it has."):
            load_program("flower-superexec")()

    def _use_apps(self, home: Path, make_executor: MakeExecutor | None) -> None:
        """Install the app that may run, and say what runs apps; exit with a sentence if that is not possible."""
        try:
            guard = None if self.pin is None else self.pin.install(home)
            if make_executor is None:
                return
            flower_patches.use_executor(partial(make_executor, guard))
            if self.pin is not None and guard is not None:
                self.pin.preload(guard.installed)
        except (ValueError, RuntimeError, OSError) as error:
            sys.exit(f"fedmos deploy apps: {error}")


def hold(home: Path) -> None:
    """Have a folder of installed apps for this process alone until it ends; exit with a sentence if another one has it.

    The lock is not one of `FolderLock`: the apps that are forked from this process must not hold it.
    """
    import fcntl

    file = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            sys.exit(
                f"fedmos deploy apps: Cannot use {home} because another process runs apps there; end it first, or use "
                "another 'state'"
            )


def serve_all(
    endpoints: Sequence[Endpoint], secret: Path, home: Path, make_executor: MakeExecutor | None = None
) -> None:
    """Serve each endpoint in a fork of this process; a fork that ends is replaced."""
    serving: dict[int, Endpoint] = {}
    starting = list(endpoints)
    while True:
        for endpoint in starting:
            if (pid := os.fork()) == 0:
                its_home = flower_home(endpoint.address, home)
                run_and_exit(partial(_serve_with_log, endpoint, secret, its_home, make_executor))
            serving[pid] = endpoint
        pid, _ = os.wait()
        starting = [serving.pop(pid)]
        sleep(_RESTART_PAUSE)


def _serve_with_log(endpoint: Endpoint, secret: Path, home: Path, make_executor: MakeExecutor | None) -> None:
    """Serve one of several endpoints, with a log file of its own."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / LOG).open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    endpoint.serve(secret, home, make_executor)


def preload(config: str | Path, client_file: Path | None = None) -> None:
    """Create a run's model and data, and read a client's own data, for all forks.

    PyTorch uses one thread meanwhile: a fork has no copy of the thread pool and would wait for it forever.
    """
    from .. import client_setup, deployment
    from ..client_errors import ClientError

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        deployment.preload(config)
        if client_file is not None:
            with suppress(ClientError):  # it is logged when a message needs the data
                client_setup.preload_client(client_file, deployment.Deployment.of(config).agreed)
    finally:
        torch.set_num_threads(threads)


def _parse_arguments() -> tuple[argparse.Namespace, list[Endpoint]]:
    parser = argparse.ArgumentParser(prog="fedmos deploy apps", description=__doc__, allow_abbrev=False)
    parser.add_argument("--superlink", metavar="HOST:PORT", help="run its server apps; needs --root-certificates")
    parser.add_argument("--root-certificates", metavar="CA.PEM", help="certificate that authenticates the SuperLink")
    parser.add_argument("--supernode", metavar="HOST:PORT", action="append", default=[], help="run its client apps")
    parser.add_argument("--app", metavar="APP.fab", type=Path, help="the app that clients run; others are refused")
    parser.add_argument("--any-app", action="store_true", help="let clients run any app that the server sends")
    parser.add_argument("--client-file", metavar="CLIENT.toml", type=Path, help="the client's own file, with its data")
    parser.add_argument("--preload", metavar="CONFIG.toml", help="read a run's data once instead of at every message")
    parser.add_argument("--plain", action="store_true", help="run Flower's own flower-superexec")
    parser.add_argument("--secret", type=Path, required=True, help="the file given as --superexec-auth-secret-file")
    arguments = parser.parse_args()
    if (arguments.superlink is None) != (arguments.root_certificates is None):
        parser.error("--superlink and --root-certificates must be given together")
    if arguments.supernode and (arguments.app is None) != arguments.any_app:
        parser.error("--supernode needs either --app or --any-app, with which the server chooses what code clients run")
    endpoints = [Endpoint(address, None, _pin(arguments)) for address in arguments.supernode]
    if arguments.superlink is not None:
        endpoints.append(Endpoint(arguments.superlink, arguments.root_certificates))
    if not endpoints:
        parser.error("at least one of --superlink and --supernode must be given")
    return arguments, endpoints


def _pin(arguments: argparse.Namespace) -> Pin | None:
    """Return what clients run; their own file may name code of their own, and says where the audit log is."""
    if arguments.app is None:
        return None
    if arguments.client_file is None:
        return Pin(arguments.app)
    from .installations import ClientInstallation

    own = ClientInstallation.read(arguments.client_file)
    has_code = own.settings.data is not None and own.settings.data.function is not None
    return Pin(arguments.app, (own.folder,) if has_code else (), own.audit, own.file)


def accelerate(config: str | None) -> MakeExecutor:
    """Shorten Flower's pauses, and import and read what apps need; returns what runs them in forks of this process."""
    from .forking_executor import ForkingExecutor

    os.environ.setdefault(POLL, "0.2")
    flower_patches.shorten_app_pauses()
    flower_patches.wait_for_messages()
    for module in _PRELOADED:
        import_module(module)
    if config is not None:
        preload(config)
    return ForkingExecutor


def main() -> None:
    """Accelerate Flower if its version is known, and serve the endpoints given on the command line."""
    arguments, endpoints = _parse_arguments()
    home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    make_executor = None
    if not arguments.plain and flower_patches.known_version():
        make_executor = accelerate(arguments.preload)
    if len(endpoints) == 1:
        endpoints[0].serve(arguments.secret, home, make_executor)
    serve_all(endpoints, arguments.secret, home, make_executor)


if __name__ == "__main__":
    main()
