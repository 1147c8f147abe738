"""Program: a SuperNode with shorter pauses, which can reconnect at once after it was killed.

    python supernode.py [--plain] --poll SECONDS --memory FILE ARGUMENTS OF flower-supernode...

`flower_patches` explains the differences from `flower-supernode`. With `--plain`, and on a version of Flower that
`flower_patches` does not know, there are none, except that with `--plain` it ends when its connection has ended. The
program is run as a file, so that a SuperNode does not import fedmos and PyTorch.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_REFUSED = (
    "The server refuses this node. Either its key is not registered or was removed, or its clock is more than 5 s "
    "ahead of the server's or 5 min behind it; fedmos deploy doctor CLIENT.toml compares the clocks."
)
_DISCONNECTED = (
    "This node has given up its connection to the server, for the reason above. It ends with status 1, so that it is "
    "started again."
)


def _load(name: str) -> Any:
    """Load a module of this folder by its path: importing it from its package would import fedmos."""
    spec = spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_patches() -> Any:
    return _load("flower_patches")


def main() -> None:
    """Parse the program's own options, patch Flower, and run `flower-supernode` with the other options."""
    parser = argparse.ArgumentParser(prog="fedmos deploy node", add_help=False, allow_abbrev=False)
    parser.add_argument("--poll", type=float, default=0.5)
    parser.add_argument("--memory", type=Path)
    parser.add_argument("--plain", action="store_true")
    options, flower_options = parser.parse_known_args()
    (program,) = entry_points(group="console_scripts", name="flower-supernode")
    patches = _load_patches()
    if not options.plain and patches.known_version():
        patches.shorten_supernode_pauses(options.poll)
        patches.order_replies()
        if options.memory is not None:
            patches.deactivate_previous_session(options.memory)
    sys.argv = ["flower-supernode", *flower_options]
    with _load("exit_status").failure_if_refused(_REFUSED):
        program.load()()
    if patches.is_known(patches.version("flwr")):
        # Flower leaves its loop after some errors of the connection. Its other threads would keep the process running.
        print(_DISCONNECTED, file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
