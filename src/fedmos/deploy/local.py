"""A deployment on one machine: a SuperLink and its SuperNodes on loopback, with certificates and keys of their own."""

from __future__ import annotations

import math
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

from .certificates import Certificates, KeyPair, make_certificates, make_key, write_secret
from .control import Control, RunState
from .environment import environment
from .supervise import Troupe, wait_until

HOST = "127.0.0.1"
SUPERLINK, SERVER_APPS = "superlink", "server-apps"
_NODE_PROGRAM = Path(__file__).with_name("node.py")
_START = 60.0
_RESTARTS = 5


@dataclass(frozen=True)
class Node:
    """A client's place."""

    client: str
    number: int
    folder: Path
    port: int
    key: KeyPair

    @property
    def name(self) -> str:
        """Of its SuperNode among the processes."""
        return f"node-{self.number}"

    @property
    def apps(self) -> str:
        """Of what runs its client app."""
        return f"node-{self.number}-apps"


class LocalDeployment:
    """Starts everything on entry, stops everything on exit; `poll` is how long its processes pause between looks.

    The folder keeps certificates, keys, logs, Flower's files, and the state of each client.
    """

    def __init__(self, folder: Path, clients: Sequence[str], poll: float = 0.1) -> None:
        self.folder, self.poll = folder.absolute(), poll
        self.address, *ports = (f"{HOST}:{port}" for port in _free_ports(len(clients) + 1))
        self.certificates = Certificates(self.folder / "certificates")
        self.nodes = [
            Node(client, i, self.folder / f"node-{i}", int(address.split(":")[1]), KeyPair(self.folder / f"keys/{i}"))
            for i, (client, address) in enumerate(zip(clients, ports, strict=True))
        ]
        self.troupe = Troupe(self.folder / "logs", environment(self.folder / "flower", poll))
        self._secret = self.folder / "keys" / "apps.secret"
        self._threads = str(max(1, (os.cpu_count() or 1) // len(clients)))
        self._restarts: dict[str, int] = {}

    def __enter__(self) -> LocalDeployment:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.certificates.server_key.exists():
            make_certificates(self.certificates.folder, [HOST, "localhost"])
            for node in self.nodes:
                make_key(node.key.private)
            write_secret(self._secret, secrets.token_bytes(32))
        for left in self.folder.glob("superlink.db*"):  # of a deployment here before: its clients are registered anew
            left.unlink()
        self.troupe.__enter__()
        try:
            self._start_all()
        except BaseException:
            self.troupe.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.control.__exit__(kind, error, trace)
        self.troupe.__exit__(kind, error, trace)

    def _start_all(self) -> None:
        self.control = Control(self.address, self.certificates.authority)
        self.start(SUPERLINK)
        for name in (SERVER_APPS, *(node.apps for node in self.nodes)):
            self.start(name)
        self._wait(self.control.listening, "The SuperLink does not listen", SUPERLINK)
        for node in self.nodes:
            self.control.register(node.key.public)
            self.start(node.name)
        everyone = [node.name for node in self.nodes]
        self._wait(lambda: len(self.control.online()) == len(everyone), "Clients do not sign on", *everyone)

    def start(self, name: str) -> None:
        """Start a process of the deployment, by its name."""
        self.troupe.start(name, *self._command(name))

    def _command(self, name: str) -> tuple[list[str], dict[str, str]]:
        """What a process runs, and what it has in its environment."""
        authority = str(self.certificates.authority)
        if name == SUPERLINK:
            return [
                *("flower-superlink", "--host", HOST, "--port", self.address.split(":")[1]),
                *("--ssl-ca-certfile", authority),
                *("--ssl-certfile", str(self.certificates.server), "--ssl-keyfile", str(self.certificates.server_key)),
                *("--enable-supernode-auth", "--isolation", "process"),
                *("--superexec-auth-secret-file", str(self._secret)),
                *("--database", str(self.folder / "superlink.db")),
            ], {}
        apps = [sys.executable, "-m", "fedmos.deploy.apps", "--secret", str(self._secret)]
        if name == SERVER_APPS:
            return [*apps, "--root-certificates", authority, self.address], {}
        node = next(node for node in self.nodes if name in (node.name, node.apps))
        own = {"FLWR_HOME": str(node.folder / "flower")}
        if name == node.apps:
            return [*apps, f"{HOST}:{node.port}"], own | {"OMP_NUM_THREADS": self._threads}
        return [
            *(sys.executable, "-P", str(_NODE_PROGRAM), "--poll", f"{self.poll:g}"),
            *("--memory", str(node.folder / "signed-on")),
            *("--superlink", self.address, "--root-certificates", authority),
            *("--auth-supernode-private-key", str(node.key.private)),
            *("--host", HOST, "--port", str(node.port), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(self._secret)),
            *("--node-config", f'client="{node.client}" state="{node.folder}"'),
        ], own

    def run(
        self, app: Path, out: Path, seconds: float = math.inf, watch: Callable[[], None] = lambda: None
    ) -> RunState:
        """Run an app whose server writes to `out`, to its end; a server app that is killed is started again.

        What dies meanwhile is started again too; `watch` is called at every look.
        """
        deadline = monotonic() + seconds
        for _ in range(_RESTARTS):
            state = self.wait(self.start_run(app, out), deadline - monotonic(), watch)
            if state.completed or state.raised or state.stopped:
                break
        return state

    def start_run(self, app: Path, out: Path) -> int:
        """Start an app; returns the run's number."""
        return self.control.start(app, {"out": str(out.absolute())})

    def wait(self, run: int, seconds: float = math.inf, watch: Callable[[], None] = lambda: None) -> RunState:
        """Wait for the end of a run."""
        deadline = monotonic() + seconds
        while not (state := self.control.state(run)).ended:
            if monotonic() > deadline:
                raise TimeoutError(f"Run {run}: still {state.status} after {seconds:g} s")
            self.restart_dead()
            watch()
            sleep(self.poll)
        watch()
        return state

    def restart_dead(self) -> list[str]:
        """Start again what has ended by itself; returns its names. What ends too often is an error."""
        names = [SUPERLINK, SERVER_APPS, *(name for node in self.nodes for name in (node.name, node.apps))]
        dead = [name for name in names if not self.troupe.alive(name)]
        for name in dead:
            self._restarts[name] = self._restarts.get(name, 0) + 1
            if self._restarts[name] > _RESTARTS:
                raise RuntimeError(
                    f"{name} has ended {self._restarts[name]} times; its last words:\n{self.troupe.said(name)}"
                )
            self.start(name)
        return dead

    def kill_node(self, number: int) -> None:
        """End a client as a power cut would."""
        for name in (self.nodes[number].name, self.nodes[number].apps):
            self.troupe.kill(name)

    def start_node(self, number: int) -> None:
        """Start a client that was ended."""
        for name in (self.nodes[number].apps, self.nodes[number].name):
            self.start(name)

    def _wait(self, ready: Callable[[], bool], what: str, *names: str) -> None:
        """Wait for a beginning; if a process that it takes ends instead, say what it said."""

        def settled() -> bool:
            for name in names:
                if not self.troupe.alive(name):
                    raise RuntimeError(f"{what} because {name} has ended:\n{self.troupe.said(name)}")
            return ready()

        wait_until(settled, _START, what)


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
