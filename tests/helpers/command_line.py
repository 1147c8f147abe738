"""The command line, in this process: a process of its own takes seconds to start."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock


def command_line(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `fedmos` with arguments in a folder."""
    from fedmos.cli.commands import main

    out, errors, code, before = io.StringIO(), io.StringIO(), 0, Path.cwd()
    os.chdir(cwd)
    try:
        with (
            mock.patch.object(sys, "argv", ["fedmos", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(["fedmos", *arguments], code, out.getvalue(), errors.getvalue())


def command_line_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m fedmos` with arguments in a folder, as a process of its own."""
    return subprocess.run([sys.executable, "-m", "fedmos", *arguments], cwd=cwd, capture_output=True, text=True)
