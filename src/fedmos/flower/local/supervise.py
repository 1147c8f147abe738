"""Processes that are started together and all stopped, whatever happens to who started them."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from types import FrameType, TracebackType

_TETHER = Path(__file__).with_name("die_with_parent.py")


class ProcessGroup:
    """Named processes, each with a log file of its own; `with ProcessGroup(...)` stops them all at its end.

    A process is a session of its own, so a terminal's Ctrl-C reaches only us and we stop the others in order; and it
    is tied to us, so it ends even if we are killed.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        self._environment = dict(environment)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> ProcessGroup:
        self.logs.mkdir(parents=True, exist_ok=True)
        atexit.register(self.stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        atexit.unregister(self.stop)

    def log(self, name: str) -> Path:
        """Where a process writes what it has to say."""
        return self.logs / f"{name}.log"

    def said(self, name: str, lines: int = 20) -> str:
        """The last lines of a process's log."""
        return "\n".join(self.log(name).read_text("utf-8", "replace").splitlines()[-lines:])

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process; one that was started before under this name is ended first."""
        if name in self._processes:
            self.stop(name)
        with self.log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command],
                env=self._environment | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self, name: str) -> bool:
        return name in self._processes and not _ended(self._processes[name])

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """End a process and all that it started at once, as a power cut would."""
        _finish(self._processes[name])
        del self._processes[name]

    def stop(self, *names: str, patience: float = 5.0) -> None:
        """End processes (all by default), the last started first; those that do not heed are killed."""
        processes = {name: self._processes[name] for name in names or tuple(self._processes)}
        for process in reversed(processes.values()):
            _signal(process, signal.SIGTERM)
        deadline = monotonic() + patience
        while not all(map(_ended, processes.values())) and monotonic() < deadline:
            sleep(0.02)
        for name in processes:
            self.kill(name)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended, without releasing its number: its group is to be ended by that number later."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _finish(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, or what one that has ended left behind, and release its number."""
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a group of the dead
        os.killpg(process.pid, number)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let a request to end, or the end of the terminal, do what Ctrl-C does: leave every `with` in good order."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_until(ready: Callable[[], bool], seconds: float, what: str, every: float = 0.05) -> None:
    """Wait for a condition; complain if it does not come."""
    deadline = monotonic() + seconds
    while not ready():
        if monotonic() > deadline:
            raise TimeoutError(f"{what}: still waiting after {seconds:g} s")
        sleep(every)
