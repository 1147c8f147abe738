"""Program: a SuperNode with shorter pauses, which can reconnect at once after it was killed.

    python supernode.py --poll SECONDS --memory FILE ARGUMENTS OF flower-supernode...

`flower_patches` explains the differences from `flower-supernode`. The program is run as a file, so that a SuperNode
does not import fedmos and PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from flwr.supernode.cli import flower_supernode


def _load_patches() -> Any:
    """Load flower_patches.py by its path: importing it from its package would import fedmos."""
    spec = spec_from_file_location("flower_patches", Path(__file__).with_name("flower_patches.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Parse the program's own options, patch Flower, and run `flower-supernode` with the other options."""
    parser = argparse.ArgumentParser(prog="fedmos deploy node", add_help=False, allow_abbrev=False)
    parser.add_argument("--poll", type=float, default=0.5)
    parser.add_argument("--memory", type=Path)
    options, flower_options = parser.parse_known_args()
    patches = _load_patches()
    patches.shorten_supernode_pauses(options.poll)
    patches.order_replies()
    if options.memory is not None:
        patches.deactivate_previous_session(options.memory)
    sys.argv = ["flower-supernode", *flower_options]
    flower_supernode()


if __name__ == "__main__":
    main()
