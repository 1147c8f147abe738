"""Processes that are started together and are all stopped, even if the process that started them is killed."""

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

_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")


class ProcessGroup:
    """Named processes with a log file each. As a context manager, stops all of them on exit.

    Every process has its own session, so that Ctrl-C in a terminal reaches only this process, which then stops the
    others in order. On Linux, the processes also end if this process is killed.
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
        """Return the path of a process's log file."""
        return self.logs / f"{name}.log"

    def log_tail(self, name: str, lines: int = 20) -> str:
        """Return the last lines of a process's log."""
        return "\n".join(self.log(name).read_text("utf-8", "replace").splitlines()[-lines:])

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process. An earlier process of the same name is stopped first."""
        if name in self._processes:
            self.stop(name)
        with self.log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_DIE_WITH_PARENT), str(os.getpid()), *command],
                env=self._environment | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self, name: str) -> bool:
        """Whether a process is running."""
        return name in self._processes and not _ended(self._processes[name])

    def pid(self, name: str) -> int:
        """Return the id of a process."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """Kill a process and all processes that it started, without notice."""
        _kill_group(self._processes[name])
        del self._processes[name]

    def stop(self, *names: str, timeout: float = 5.0) -> None:
        """Terminate processes (default: all), the last started first. Kill those still running after `timeout`."""
        processes = {name: self._processes[name] for name in names or tuple(self._processes)}
        for process in reversed(processes.values()):
            _signal_group(process, signal.SIGTERM)
        deadline = monotonic() + timeout
        while not all(map(_ended, processes.values())) and monotonic() < deadline:
            sleep(0.02)
        for name in processes:
            self.kill(name)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended. Its id stays reserved, because its group is killed by that id later."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, or the processes that an ended one has left, and release its id."""
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a group of ended processes
        os.killpg(process.pid, number)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP like on Ctrl-C: by an exception, so that context managers clean up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def wait_until(ready: Callable[[], bool], timeout: float, what: str, every: float = 0.05) -> None:
    """Wait for a condition.

    Args:
        ready: The condition.
        timeout: Seconds to wait at most.
        what: The beginning of the error message.
        every: Seconds between two checks.

    Raises:
        TimeoutError: If the condition does not hold in time.
    """
    deadline = monotonic() + timeout
    while not ready():
        if monotonic() > deadline:
            raise TimeoutError(f"{what}: still waiting after {timeout:g} s")
        sleep(every)
