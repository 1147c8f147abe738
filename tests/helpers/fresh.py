"""Programs in fresh interpreters. They are forks of a process that has imported torch and nothing of fedmos, because
starting an interpreter and importing torch takes seconds."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_SERVER = """
import json, os, sys, traceback
import torch

for line in sys.stdin:
    request, children = json.loads(line), []
    sys.stdout.flush()
    for number, program in enumerate(request["programs"]):
        child = os.fork()
        if child:
            children.append(child)
            continue
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{request['folder']}/{number}.{name}", os.O_CREAT | os.O_WRONLY), stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        code = 0
        try:
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    """The process that forks."""
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdin=pipe, stdout=pipe, text=True)
    atexit.register(server.communicate)  # closes its input, at which it ends
    return server


def run_together(*programs: str) -> list[subprocess.CompletedProcess[str]]:
    """Run programs at the same time, and wait for all of them."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        request = {"programs": programs, "environment": dict(os.environ), "folder": folder}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        codes = json.loads(server.stdout.readline())
        written = [[Path(folder, f"{i}.{name}").read_text() for name in ("out", "err")] for i in range(len(programs))]
    return [subprocess.CompletedProcess("program", code, *texts) for code, texts in zip(codes, written, strict=True)]


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program."""
    return run_together(program)[0]
