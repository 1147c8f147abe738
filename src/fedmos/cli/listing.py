"""`fedmos list`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

console = Console()


def list_everything() -> None:
    """Show every algorithm, selector, data set, partition and model, with their fields."""
    from ..config import registry

    for title, things in (
        ("Algorithms", registry.algorithms()),
        ("Selectors", registry.selectors()),
        ("Availability", registry.availabilities()),
        ("Profiles of speed and bandwidth", registry.profiles()),
        ("Partitions", registry.partitions()),
        ("Models", registry.models()),
    ):
        table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
        for name, thing in things.items():
            first = (inspect.getdoc(thing) or "").split("\n")[0]
            table.add_row(f"[bold]{name}[/]({escape(_fields(thing))})", escape(first))
        console.print(table, "")
    console.print("[bold]Data sets[/]: " + ", ".join(registry.datasets()))


def _fields(thing: Callable[..., Any]) -> str:
    parameters = inspect.signature(thing).parameters.items()
    return ", ".join(name if p.default is p.empty else f"{name}={p.default!r}" for name, p in parameters)
