"""A deployment of real processes whose SuperLink, clocks and apps fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from fedmos.flower.local.local_deployment import SUPERLINK, LocalDeployment
from fedmos.flower.local.process_group import wait_until
from fedmos.flower.local.progress import DeploymentProgress
from helpers.faulty_network import FaultyNetwork

_SHIFTED_CLOCK = """
import datetime, os
_offset = datetime.timedelta(seconds=float(os.environ["CLOCK_OFFSET"]))
class datetime_(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + _offset
datetime.datetime = datetime_
"""


class FaultyDeployment(LocalDeployment):
    """A `LocalDeployment` with a database if asked for, whose processes can have other clocks."""

    database: Path | None = None

    def command(self, name: str) -> tuple[list[str], dict[str, str]]:
        command, environment = super().command(name)
        if name == SUPERLINK and self.database is not None:
            command += ["--database", str(self.database)]
        if name in self.networks:
            command = [self.networks[name].address if part == self.address else part for part in command]
        return command, {**environment, **self.environments.get(name, {})}

    def __init__(self, *given: object, **options: object) -> None:
        super().__init__(*given, **options)  # type: ignore[arg-type]
        self.environments: dict[str, dict[str, str]] = {}
        self.networks: dict[str, FaultyNetwork] = {}
        """The networks between nodes and the SuperLink, by the name of the process."""

    def shift_clock(self, name: str, seconds: float) -> None:
        """Let a process begin with another time, from its next start on."""
        folder = self.folder / "clock"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(_SHIFTED_CLOCK)
        self.environments[name] = {"PYTHONPATH": str(folder), "CLOCK_OFFSET": str(seconds)}

    def kill_superlink(self, seconds: float) -> None:
        """Kill the SuperLink, and start it again after some seconds."""
        self.processes.kill(SUPERLINK)
        sleep(seconds)
        self.start(SUPERLINK)
        wait_until(self.control.listening, 300, "The SuperLink does not listen", every=0.2)

    def kill_node_app(self, number: int) -> bool:
        """Kill the app of a client in the middle of its work; returns whether one was running."""
        superexec = self._superexec_pid(self.nodes[number].address)
        children = Path(f"/proc/{superexec}/task/{superexec}/children").read_text("ascii").split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        return bool(children)

    def wait_for(self, run: int, timeout: float, on_poll: Callable[[], None] = lambda: None) -> str:
        """Return the outcome of a run, while the SuperLink may be killed."""
        deadline = monotonic() + timeout
        while monotonic() < deadline:
            on_poll()
            self.restart_dead()
            state = self.control.state(run)
            if state.ended:
                return state.outcome
        raise TimeoutError(f"Run {run}: not finished after {timeout:g} s\n{self.server_log(40)}")


class Once:
    """Does harm once, after a round."""

    def __init__(self, run: Path, t: int, harm: Callable[[], object]) -> None:
        self._progress, self._t, self._harm = DeploymentProgress(run), t, harm
        self.done = False

    def __call__(self) -> None:
        if not self.done and any(record["round"] >= self._t for record in self._progress.new_records()):
            self.done = True
            self._harm()
