"""A deployment on one machine: a SuperLink and its SuperNodes on loopback, with certificates and keys of their own."""

from __future__ import annotations

import math
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

from .certificates import Certificates, KeyPair, make_certificates, make_key, write_secret
from .control import Control, RunState
from .environment import LOG, PID, environment, home_of
from .supervise import ProcessGroup, wait_until

HOST = "127.0.0.1"
SUPERLINK, APPS = "superlink", "apps"
_NODE_PROGRAM = Path(__file__).with_name("node.py")
_START = 120.0
_RESTARTS = 5
_LOOKS = 40
"""Of all clients together in a second, at most: each costs a SuperLink some 5 ms."""
_GLANCE = 0.5
"""Seconds between our own looks at how the run fares."""


@dataclass(frozen=True)
class Node:
    """A client's place."""

    client: str
    number: int
    folder: Path
    address: str
    key: KeyPair

    @property
    def name(self) -> str:
        """Of its SuperNode among the processes."""
        return f"node-{self.number}"


class LocalDeployment:
    """Starts everything on entry, stops everything on exit; `poll` is how long its processes pause between looks.

    With a configuration to `preload`, its data is read once rather than by every client for every message. The folder
    keeps certificates, keys, logs, Flower's files, and the state of each client; what the SuperLink knows is in its
    memory alone.
    """

    def __init__(
        self, folder: Path, clients: Sequence[str], poll: float | None = None, preload: Path | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.poll = max(0.1, len(clients) / _LOOKS) if poll is None else poll
        self.address, *addresses = (f"{HOST}:{port}" for port in free_ports(len(clients) + 1))
        self.certificates = Certificates(self.folder / "certificates")
        self.nodes = [
            Node(client, i, self.folder / f"node-{i}", address, KeyPair(self.folder / f"keys/{i}"))
            for i, (client, address) in enumerate(zip(clients, addresses, strict=True))
        ]
        self._preload = preload
        self._home = self.folder / "flower"
        self.troupe = ProcessGroup(self.folder / "logs", environment(self._home, self.poll))
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
        self.start(APPS)
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
            ], {}
        if name == APPS:
            nodes = [text for node in self.nodes for text in ("--supernode", node.address)]
            return [
                *(sys.executable, "-m", "fedmos.flower.local.apps", "--secret", str(self._secret)),
                *("--superlink", self.address, "--root-certificates", authority, *nodes),
                *(() if self._preload is None else ("--preload", str(self._preload))),
            ], {"OMP_NUM_THREADS": self._threads}
        node = next(node for node in self.nodes if node.name == name)
        return [
            *(sys.executable, "-P", str(_NODE_PROGRAM), "--poll", f"{self.poll:g}"),
            *("--memory", str(node.folder / "signed-on")),
            *("--superlink", self.address, "--root-certificates", authority),
            *("--auth-supernode-private-key", str(node.key.private)),
            *("--host", HOST, "--port", node.address.split(":")[1], "--isolation", "process"),
            *("--superexec-auth-secret-file", str(self._secret)),
            *("--node-config", f'client="{node.client}" state="{node.folder}"'),
        ], {}

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
            sleep(_GLANCE)
        watch()
        return state

    def restart_dead(self) -> list[str]:
        """Start again what has ended by itself; returns its names. What ends too often is an error."""
        if not self.troupe.alive(SUPERLINK):
            raise RuntimeError(f"The SuperLink has ended; it said:\n{self.troupe.said(SUPERLINK)}")
        dead = [name for name in (APPS, *(node.name for node in self.nodes)) if not self.troupe.alive(name)]
        for name in dead:
            self._restarts[name] = self._restarts.get(name, 0) + 1
            if self._restarts[name] > _RESTARTS:
                raise RuntimeError(
                    f"{name} has ended {self._restarts[name]} times; its last words:\n{self.troupe.said(name)}"
                )
            self.start(name)
        return dead

    def server_log(self, lines: int = 20) -> str:
        """What the server app said last."""
        log = home_of(self.address, self._home) / LOG
        return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])

    def kill_node(self, number: int) -> None:
        """End a client and its app as a power cut would; `restart_dead` brings it back."""
        os.kill(self._executor(self.nodes[number].address), signal.SIGKILL)
        self.troupe.kill(self.nodes[number].name)

    def kill_server_app(self) -> bool:
        """End the server app, if it runs. Asks Linux for its number."""
        executor = self._executor(self.address)
        apps = Path(f"/proc/{executor}/task/{executor}/children").read_text("ascii").split()
        for app in apps:
            os.kill(int(app), signal.SIGKILL)
        return bool(apps)

    def _executor(self, address: str) -> int:
        """The process that runs apps for a place."""
        return int((home_of(address, self._home) / PID).read_text("ascii"))

    def _wait(self, ready: Callable[[], bool], what: str, *names: str) -> None:
        """Wait for a beginning; if a process that it takes ends instead, say what it said."""

        def settled() -> bool:
            for name in names:
                if not self.troupe.alive(name):
                    raise RuntimeError(f"{what} because {name} has ended:\n{self.troupe.said(name)}")
            return ready()

        wait_until(settled, _START, what, every=0.2)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
