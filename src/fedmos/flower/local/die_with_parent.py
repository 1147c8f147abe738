"""Run a command that ends when its parent ends: `python die_with_parent.py PARENT COMMAND...`.

Run as a file, so that it costs milliseconds: it imports nothing of fedmos. Where the system cannot tie a process to
its parent (it is Linux that can), the command runs all the same, and only an orderly end of the parent ends it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie() -> None:
    """Have the system end this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    tie()
    if os.getppid() == int(sys.argv[1]):  # or else the parent ended before it could be tied to
        os.execvp(sys.argv[2], sys.argv[2:])
