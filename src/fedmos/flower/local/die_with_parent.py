"""Run a command that ends when its parent process ends: `python die_with_parent.py PARENT_PID COMMAND...`.

The program is run as a file and imports nothing of fedmos, so that it starts in milliseconds. Only Linux can bind a
process to its parent. On other systems the command runs all the same, and ends only if its parent stops it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the system kill this process when its parent ends, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    if os.getppid() == int(sys.argv[1]):  # otherwise the parent ended before the call above
        os.execvp(sys.argv[2], sys.argv[2:])
