"""Forked processes: they run one function, and end with their parent."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from .die_with_parent import die_with_parent


def run_and_exit(work: Callable[[], None]) -> NoReturn:
    """In a forked process: run a function, and exit without the parent's cleanup."""
    code = 1
    try:
        die_with_parent()
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
