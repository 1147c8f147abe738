"""The lock of a run's folder, which admits one process at a time."""

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

_NOT_SUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""Errors of file systems without locks."""
SERVER_LOCK = ".server.lock"
"""The lock of the server app of a deployment, which waits for clients before its run has the folder."""


class FolderLock:
    """The file `lock`, locked while its holder is alive. It contains a description of the holder.

    The operating system releases a lock when its holder ends in any way, so the lock of a killed run is free. On file
    systems without locks the content of the file decides: the lock is free if its holder ran on this machine and is no
    longer alive, or if another process now has its number.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not self._acquire():
                raise StorageError(
                    f"Cannot use {path.parent} because another run is in it ({_describe(_read(self._file))}); "
                    "wait for it or use another folder"
                )
            holder = _read(self._file)
            self.killed_holder = _describe(holder) if holder else ""
            """The previous holder, if it was killed before it could release the lock; otherwise empty."""
            self._write(json.dumps(_this_process()))
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Release the lock. The file remains: without it, two processes could lock two files of the same name."""
        try:
            self._write("")
        finally:
            os.close(self._file)

    def _acquire(self) -> bool:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    return False
        return not _alive(_read(self._file))

    def _write(self, text: str) -> None:
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, text.encode())


def is_held(path: Path) -> bool:
    """Return whether the holder of a lock is alive, without locking. One on another machine is assumed to be."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return _alive(_read(file))
    finally:
        os.close(file)


def _this_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "process": _process_identity(os.getpid()),
    }


def _process_identity(pid: int) -> str:
    """Distinguish a process from later ones with its number: by the boot and the time at which it started."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot + " " + Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _alive(holder: dict[str, Any]) -> bool:
    """Whether a holder is alive. A holder on another machine is assumed to be."""
    if not holder or holder.get("host") != platform.node() or os.name == "nt":
        return bool(holder)
    try:
        os.kill(int(holder["pid"]), 0)
    except (ProcessLookupError, KeyError, ValueError, TypeError):
        return False
    except OSError:
        pass
    return bool(holder.get("process") == _process_identity(int(holder["pid"])))


def _read(file: int) -> dict[str, Any]:
    try:
        os.lseek(file, 0, os.SEEK_SET)
        holder = json.loads(os.read(file, 4096))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _describe(holder: dict[str, Any]) -> str:
    if not holder:
        return "it does not say whose"
    return f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
