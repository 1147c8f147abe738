"""`fedmos check`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from ..core.formatting import one_line
from ..core.validation import suggest

console = Console(soft_wrap=True, emoji=False)


def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A class, e.g. mine.py:FedSAM, package.module:FedSAM, or one of `fedmos list`."
        ),
    ],
    fields: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="Its fields, e.g. lr=0.1.")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="Local steps per round (default: one epoch, of unequal lengths).")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every check with its outcome.")] = False,
) -> None:
    """Check an algorithm, selector, local optimiser, codec or aggregation rule of your own on a small federation.

    Prints the findings, one sentence each, and ends with exit code 1 if there are any. For example: fedmos check
    mine.py:FedSAM lr=0.1 rho=0.05
    """
    from ..checking.api import check as find

    found = find(_built(name, fields or []), local_steps=local_steps, verbose=verbose)
    for sentence in found if not verbose else []:
        console.print(sentence, highlight=False, markup=False)
    if found:
        raise typer.Exit(1)
    console.print(f"{name}: no findings", highlight=False, markup=False)


def _built(name: str, fields: list[str]) -> Any:
    """Construct the object of this name from its fields."""
    from ..config import registry
    from ..config.build import build
    from ..config.choices import Choice
    from ..config.own_classes import is_own
    from ..config.text import apply_override

    table: dict[str, Any] = {}
    for text in fields:
        if "=" not in text:
            raise ValueError(f"check: fields must look like lr=0.1, got {text!r}")
        apply_override(table, text)
    known = registry.algorithms() | registry.selectors() | registry.local_optimizers() | registry.codecs()
    known |= registry.aggregations()
    if not is_own(name) and name not in known:
        hint = f"{suggest(name, known)}; use a name of fedmos list, or mine.py:Name for a class of your own"
        raise ValueError(f"check: nothing is called {one_line(name, 100)!r}{hint}")
    return build("check", Choice.model_validate(table | {"name": name}), known)
