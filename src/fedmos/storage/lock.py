"""One run at a time in a folder."""

from __future__ import annotations

import errno
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from .files import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_UNKNOWN_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""What file systems answer that know no locks."""


class Lock:
    """The file `lock`, locked for as long as its holder lives; inside it stands who that is.

    The operating system lets go of a lock when its holder dies, however it does, so one that a killed run has left
    is free to take. Where a file system knows no locks, what stands inside decides: a holder on this machine that is no
    longer alive, or that is another process under the same number, holds nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not self._taken():
                raise StorageError(
                    f"Cannot use {path.parent} because another run is in it ({_in_words(_read(self._file))}); "
                    "wait for it or use another folder"
                )
            holder = _read(self._file)
            self.stale = _in_words(holder) if holder else ""
            """Who had it and was ended without a chance to let go; empty if nobody."""
            self._write(json.dumps(_myself()))
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Let go. The file stays: removing it would let two others lock two files of one name."""
        try:
            self._write("")
        finally:
            os.close(self._file)

    def _taken(self) -> bool:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if error.errno not in _UNKNOWN_HERE:
                    return False
        return not _alive(_read(self._file))

    def _write(self, text: str) -> None:
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, text.encode())


def _myself() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "process": _process(os.getpid()),
    }


def _process(pid: int) -> str:
    """What tells a process from a later one of its number: the boot, and when in it the process began."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot + " " + Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _alive(holder: dict[str, Any]) -> bool:
    """Whether a holder may still be at work; one who cannot be asked is taken to be."""
    if not holder or holder.get("host") != platform.node() or os.name == "nt":
        return bool(holder)
    try:
        os.kill(int(holder["pid"]), 0)
    except (ProcessLookupError, KeyError, ValueError, TypeError):
        return False
    except OSError:
        pass
    return bool(holder.get("process") == _process(int(holder["pid"])))


def _read(file: int) -> dict[str, Any]:
    try:
        os.lseek(file, 0, os.SEEK_SET)
        holder = json.loads(os.read(file, 4096))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _in_words(holder: dict[str, Any]) -> str:
    if not holder:
        return "it does not say whose"
    return f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
