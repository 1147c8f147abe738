"""`fedmos list`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core.validation import suggest

console = Console(emoji=False)

Part = Mapping[str, Callable[..., Any] | None]
"""The names of a part of the list, with what they stand for; None for a data set."""


def list_everything(
    filter_: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILTER]...",
            help="A part (algorithms, codecs, local, aggregation, attacks, selectors, availability, profiles, "
            "schedules, partitions, models, data) or part of a name.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show every algorithm, codec, aggregation rule, selector, data set, partition, model, … with their fields.

    For example: fedmos list selectors; fedmos list prox; fedmos list models cnn
    """
    parts = {title: things for title, things in _filtered(_parts(), filter_ or []).items() if things}
    for title, things in parts.items():
        if title == "Data sets":
            console.print("[bold]Data sets[/]: " + ", ".join(things))
            continue
        table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
        for name, thing in things.items():
            first = (inspect.getdoc(thing) or "").split("\n")[0]
            table.add_row(f"[bold]{name}[/]({escape(_fields(thing))})", escape(first))
        console.print(table, "")


def _parts() -> dict[str, Part]:
    from ..config import registry

    return {
        "Algorithms": registry.algorithms(),
        "Local optimisers": registry.local_optimizers(),
        "Codecs": registry.codecs(),
        "Aggregation rules": registry.aggregations(),
        "Attacks": registry.attacks(),
        "Selectors": registry.selectors(),
        "Availability": registry.availabilities(),
        "Profiles of speed and bandwidth": registry.profiles(),
        "Schedules of the step size": registry.schedules(),
        "Partitions": registry.partitions(),
        "Models": registry.models(),
        "Data sets": dict.fromkeys(registry.datasets()),
    }


def _filtered(parts: Mapping[str, Part], words: Iterable[str]) -> dict[str, Part]:
    """Keep the parts that `words` name, and the names that contain a word that names no part.

    Raises:
        ValueError: If nothing is left.
    """
    words = list(words)
    named = {title for word in words for title in parts if _names_part(word, title)}
    texts = [word.casefold() for word in words if not any(_names_part(word, title) for title in parts)]
    left: dict[str, Part] = {
        title: {name: thing for name, thing in things.items() if all(text in name.casefold() for text in texts)}
        for title, things in parts.items()
        if not named or title in named
    }
    if not any(left.values()):
        known = [
            *(title.split()[0].lower() for title in parts),
            *(name for things in parts.values() for name in things),
        ]
        raise ValueError(
            f"list: nothing is called {' '.join(words)!r}{suggest(words[-1], known)}; use fedmos list without a filter "
            "for everything"
        )
    return left


def _names_part(word: str, title: str) -> bool:
    """Whether a word is the first word of a part's title, in the singular or plural."""
    first = title.split()[0].casefold()
    return word.casefold() in {first, first.removesuffix("s"), title.casefold(), f"{first}sets", f"{first}set"}


def _fields(thing: Callable[..., Any] | None) -> str:
    if thing is None:
        return ""
    parameters = inspect.signature(thing).parameters.items()
    return ", ".join(name if p.default is p.empty else f"{name}={p.default!r}" for name, p in parameters)
