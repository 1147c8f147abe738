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
from .control import ControlClient, RunState
from .environment import LOG, PID, RETURNING_MEMORY, flower_environment, flower_home
from .process_group import ProcessGroup, wait_until

HOST = "127.0.0.1"
SUPERLINK, SUPEREXEC = "superlink", "apps"
"""Names of processes, and of their log files."""
_SUPERNODE_PROGRAM = Path(__file__).with_name("supernode.py")
_START_TIMEOUT = 120.0
_MAX_RESTARTS = 5
_POLLS_PER_SECOND = 40
"""Queries of all clients together, at most: each takes a SuperLink about 5 ms."""
_STATUS_INTERVAL = 0.5
"""Seconds between two looks at the processes of a run."""


@dataclass(frozen=True)
class LocalNode:
    """The SuperNode of a client."""

    client: str
    number: int
    folder: Path
    address: str
    key: KeyPair

    @property
    def name(self) -> str:
        """The name of the process."""
        return f"node-{self.number}"


class LocalDeployment:
    """A context manager that starts all processes of a deployment, and stops them on exit.

    The folder holds certificates, keys, logs, Flower's files and the state of each client. The SuperLink keeps its own
    state in memory.

    Args:
        folder: The folder of the deployment.
        clients: Names of the clients.
        poll: Seconds between two queries of a process for messages or tasks. By default it depends on the number of
            clients.
        preload: A configuration whose data is read once, instead of by every client for every message.
        plain: Use Flower's own programs and polling intervals, without the accelerators of fedmos.
    """

    def __init__(
        self,
        folder: Path,
        clients: Sequence[str],
        poll: float | None = None,
        preload: Path | None = None,
        plain: bool = False,
    ) -> None:
        self.folder = folder.absolute()
        self.poll = max(0.1, len(clients) / _POLLS_PER_SECOND) if poll is None else poll
        self.address, *addresses = (f"{HOST}:{port}" for port in free_ports(len(clients) + 1))
        self.certificates = Certificates(self.folder / "certificates")
        self.nodes = [
            LocalNode(client, i, self.folder / f"node-{i}", address, KeyPair(self.folder / f"keys/{i}"))
            for i, (client, address) in enumerate(zip(clients, addresses, strict=True))
        ]
        self._preload = preload
        self._plain = ("--plain",) if plain else ()
        self._home = self.folder / "flower"
        self.processes = ProcessGroup(self.folder / "logs", flower_environment(self._home, self.poll))
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
        self.processes.__enter__()
        try:
            self._start_all()
        except BaseException:
            self.processes.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.__exit__(kind, error, trace)

    def _start_all(self) -> None:
        self.control = ControlClient(self.address, self.certificates.authority, self._home)
        self.start(SUPERLINK)
        self.start(SUPEREXEC)
        self._wait_for_start(self.control.listening, "The SuperLink does not listen", SUPERLINK)
        self.control.register_all([node.key.public for node in self.nodes])
        for node in self.nodes:
            self.start(node.name)
        names = [node.name for node in self.nodes]
        self._wait_for_start(lambda: len(self.control.online()) == len(names), "Clients do not connect", *names)

    def start(self, name: str) -> None:
        """Start a process of the deployment."""
        self.processes.start(name, *self.command(name))

    def command(self, name: str) -> tuple[list[str], dict[str, str]]:
        """Return the command line of a process, and its additional environment variables."""
        if name == SUPERLINK:
            return self._superlink_command(), RETURNING_MEMORY
        if name == SUPEREXEC:
            return self._superexec_command(), {"OMP_NUM_THREADS": self._threads}
        return self._supernode_command(next(node for node in self.nodes if node.name == name)), RETURNING_MEMORY

    def _superlink_command(self) -> list[str]:
        certificates = self.certificates
        return [
            *("flower-superlink", "--host", HOST, "--port", self.address.split(":")[1]),
            *("--ssl-ca-certfile", str(certificates.authority)),
            *("--ssl-certfile", str(certificates.server), "--ssl-keyfile", str(certificates.server_key)),
            *("--enable-supernode-auth", "--isolation", "process"),
            *("--superexec-auth-secret-file", str(self._secret)),
        ]

    def _superexec_command(self) -> list[str]:
        nodes = [text for node in self.nodes for text in ("--supernode", node.address)]
        return [
            *(sys.executable, "-m", "fedmos.flower.local.superexec", *self._plain, "--secret", str(self._secret)),
            *("--superlink", self.address, "--root-certificates", str(self.certificates.authority), *nodes),
            "--any-app",  # of the user who has started this deployment
            *(() if self._preload is None else ("--preload", str(self._preload))),
        ]

    def _supernode_command(self, node: LocalNode) -> list[str]:
        return [
            *(sys.executable, "-P", str(_SUPERNODE_PROGRAM), *self._plain, "--poll", f"{self.poll:g}"),
            *("--memory", str(node.folder / "signed-on")),
            *("--superlink", self.address, "--root-certificates", str(self.certificates.authority)),
            *("--auth-supernode-private-key", str(node.key.private)),
            *("--host", HOST, "--port", node.address.split(":")[1], "--isolation", "process"),
            *("--superexec-auth-secret-file", str(self._secret)),
            *("--node-config", f'client="{node.client}" state="{node.folder}"'),
        ]

    def run(
        self, app: Path, out: Path, timeout: float = math.inf, on_poll: Callable[[], None] = lambda: None
    ) -> RunState:
        """Run an app to its end. A server app that is killed is started again, and so is any other process.

        Args:
            app: The folder of the app.
            out: The run folder, which the server app writes.
            timeout: Seconds that the run can take.
            on_poll: Called twice a second, and once at the end.

        Raises:
            TimeoutError: If the run takes longer.
            RuntimeError: If a process ends repeatedly.
        """
        deadline = monotonic() + timeout
        for _ in range(_MAX_RESTARTS):
            state = self.wait(self.start_run(app, out), deadline - monotonic(), on_poll)
            if state.completed or state.raised or state.stopped:
                break
        return state

    def start_run(self, app: Path, out: Path) -> int:
        """Start an app; returns the run's number."""
        return self.control.start(app, {"out": str(out.absolute())})

    def wait(self, run: int, timeout: float = math.inf, on_poll: Callable[[], None] = lambda: None) -> RunState:
        """Wait for the end of a run, and restart processes that end meanwhile."""
        deadline, log = monotonic() + timeout, f"run-{run}"
        while True:
            self.processes.start(log, self.control.follow_command(run))  # ends with the run, or with its connection
            while self.processes.alive(log):
                if monotonic() > deadline:
                    raise TimeoutError(f"Run {run}: not finished after {timeout:g} s")
                self.restart_dead()
                on_poll()
                sleep(_STATUS_INTERVAL)
            if (state := self.control.state(run)).ended:
                on_poll()
                return state

    def restart_dead(self) -> list[str]:
        """Restart the processes that have ended, and return their names.

        Raises:
            RuntimeError: If the SuperLink has ended, or another process has ended too often.
        """
        if not self.processes.alive(SUPERLINK):
            raise RuntimeError(f"The SuperLink has ended; its log:\n{self.processes.log_tail(SUPERLINK)}")
        names = (SUPEREXEC, *(node.name for node in self.nodes))
        dead = [name for name in names if not self.processes.alive(name)]
        for name in dead:
            self._restarts[name] = self._restarts.get(name, 0) + 1
            if self._restarts[name] > _MAX_RESTARTS:
                log = self.processes.log_tail(name)
                raise RuntimeError(f"{name} has ended {self._restarts[name]} times; its log:\n{log}")
            self.start(name)
        return dead

    def server_log(self, lines: int = 20) -> str:
        """Return the last lines of the server app's log."""
        log = flower_home(self.address, self._home) / LOG
        return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])

    def kill_node(self, number: int) -> None:
        """Kill a client's SuperNode and its app without notice; `restart_dead` starts them again."""
        os.kill(self._superexec_pid(self.nodes[number].address), signal.SIGKILL)
        self.processes.kill(self.nodes[number].name)

    def kill_server_app(self) -> bool:
        """Kill the server app; returns whether it was running. Works on Linux only."""
        superexec = self._superexec_pid(self.address)
        apps = Path(f"/proc/{superexec}/task/{superexec}/children").read_text("ascii").split()
        for app in apps:
            os.kill(int(app), signal.SIGKILL)
        return bool(apps)

    def _superexec_pid(self, address: str) -> int:
        """Return the id of the process that runs the apps of an endpoint."""
        return int((flower_home(address, self._home) / PID).read_text("ascii"))

    def _wait_for_start(self, ready: Callable[[], bool], failure: str, *names: str) -> None:
        """Wait for a condition; if one of the named processes ends instead, raise an error with its log."""

        def check() -> bool:
            for name in names:
                if not self.processes.alive(name):
                    raise RuntimeError(f"{failure} because {name} has ended:\n{self.processes.log_tail(name)}")
            return ready()

        wait_until(check, _START_TIMEOUT, failure, every=0.2)


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are not in use."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
