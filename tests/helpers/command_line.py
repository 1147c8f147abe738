"""The command line in a process of its own."""

import subprocess
import sys


def command_line(*arguments, cwd):
    return subprocess.run([sys.executable, "-m", "fedmos", *arguments], cwd=cwd, capture_output=True, text=True)
