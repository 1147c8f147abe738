"""Runs server and client apps for a SuperLink or for SuperNodes with process isolation.

The program replaces `flower-superexec`. It forks itself for every task instead of starting Python anew.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep

import torch._dynamo
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.superexec.run_superexec import run_superexec
from flwr.supercore.utils import get_flwr_home

from ...config import schema
from .. import client, deployment, server
from . import flower_patches
from .environment import LOG, PID, POLL, flower_home
from .forking_executor import ForkingExecutor, run_and_exit

_RESTART_PAUSE = 0.05
_PRELOADED = (torch._dynamo, schema, client, server)
"""Modules that apps need and that take seconds to import; torch.func imports the first when it is first used."""


@dataclass(frozen=True)
class Endpoint:
    """The runtime API of a SuperLink or SuperNode."""

    address: str
    authority: str | None
    """Path of the certificate that authenticates the endpoint; None without TLS."""

    def serve(self, secret: bytes, home: Path) -> None:
        """Run the apps of this endpoint; Flower installs them in `home`."""
        home.mkdir(parents=True, exist_ok=True)
        (home / PID).write_text(str(os.getpid()), "ascii")
        os.environ["FLWR_HOME"] = str(home)
        run_superexec(
            runtime_api_address=self.address,
            insecure=self.authority is None,
            root_certificates_path=self.authority,
            superexec_auth_secret=secret,
        )


def serve_all(endpoints: Sequence[Endpoint], secret: bytes, home: Path) -> None:
    """Serve each endpoint in a fork of this process; a fork that ends is replaced."""
    serving: dict[int, Endpoint] = {}
    starting = list(endpoints)
    while True:
        for endpoint in starting:
            if (pid := os.fork()) == 0:
                run_and_exit(partial(_serve_with_log, endpoint, secret, flower_home(endpoint.address, home)))
            serving[pid] = endpoint
        pid, _ = os.wait()
        starting = [serving.pop(pid)]
        sleep(_RESTART_PAUSE)


def _serve_with_log(endpoint: Endpoint, secret: bytes, home: Path) -> None:
    """Serve one of several endpoints, with a log file of its own."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / LOG).open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    endpoint.serve(secret, home)


def preload(config: str) -> None:
    """Create a run's model and data, for all forks.

    PyTorch uses one thread meanwhile: a fork has no copy of the thread pool and would wait for it forever.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        deployment.preload(config)
    finally:
        torch.set_num_threads(threads)


def _parse_arguments() -> tuple[argparse.Namespace, list[Endpoint]]:
    parser = argparse.ArgumentParser(prog="fedmos deploy apps", description=__doc__, allow_abbrev=False)
    parser.add_argument("--superlink", metavar="HOST:PORT", help="run its server apps; needs --root-certificates")
    parser.add_argument("--root-certificates", metavar="CA.PEM", help="certificate that authenticates the SuperLink")
    parser.add_argument("--supernode", metavar="HOST:PORT", action="append", default=[], help="run its client apps")
    parser.add_argument("--preload", metavar="CONFIG.toml", help="read a run's data once instead of at every message")
    parser.add_argument("--secret", type=Path, required=True, help="the file given as --superexec-auth-secret-file")
    arguments = parser.parse_args()
    if (arguments.superlink is None) != (arguments.root_certificates is None):
        parser.error("--superlink and --root-certificates must be given together")
    endpoints = [Endpoint(address, None) for address in arguments.supernode]
    if arguments.superlink is not None:
        endpoints.append(Endpoint(arguments.superlink, arguments.root_certificates))
    if not endpoints:
        parser.error("at least one of --superlink and --supernode must be given")
    return arguments, endpoints


def main() -> None:
    """Patch Flower, preload a configuration, and serve the endpoints given on the command line."""
    arguments, endpoints = _parse_arguments()
    secret = load_superexec_auth_secret(str(arguments.secret))
    assert secret is not None
    os.environ.setdefault(POLL, "0.2")
    flower_patches.shorten_app_pauses()
    flower_patches.wait_for_messages()
    flower_patches.use_executor(ForkingExecutor)
    if arguments.preload is not None:
        preload(arguments.preload)
    if len(endpoints) == 1:
        endpoints[0].serve(secret, get_flwr_home())
    serve_all(endpoints, secret, get_flwr_home())


if __name__ == "__main__":
    main()
