"""The command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core.version import __version__
from .data import app as data_app
from .deploy import app as deploy_app
from .report import plot, report
from .reproduce import reproduce

if TYPE_CHECKING:
    from ..config.schema import RunConfig
    from ..run.result import Result

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning for skewed data and scarce communication.",
    epilog="Start with: fedmos demo",
)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
app.command()(report)
app.command()(plot)
app.command()(reproduce)
console = Console()

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field, e.g. --set algorithm.lr=0.05. Repeatable."),
]


def main() -> None:
    """Run the command; errors that a user can mend are one sentence and exit code 2."""
    from ..engine.ranks import FROM_RANK0

    try:
        app()
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        errors = Console(stderr=True, soft_wrap=True, highlight=False)
        if FROM_RANK0 not in getattr(error, "__notes__", ()):  # once is enough
            errors.print(f"[bold red]Error:[/] {escape(str(error))}")
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedmos {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the report (default: runs/demo, numbered).")] = None,
) -> None:
    """Compare FedAvg, FedProx and FedMoS on real digits, two classes per client: a minute or two.

    Prints the rounds and megabytes each method needs, and writes report.html and curves.svg.
    """
    with resources.as_file(resources.files("fedmos.config").joinpath("builtin/demo.toml")) as path:
        _compare(path, [], out or free_folder(Path("runs/demo")))


@app.command()
def compare(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Methods, seeds and a target.")],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for runs and report (default: runs/NAME, numbered).")] = None,
) -> None:
    """Train several methods over several seeds, and tabulate what each needs to reach the target.

    Given the folder of a comparison that was cut off, continues it.
    """
    _compare(configuration, set_ or [], out or free_folder(Path("runs") / configuration.stem))


def _compare(configuration: Path, overrides: list[str], out: Path) -> None:
    from ..config import schema as config
    from ..experiments import compare
    from ..experiments.progress import observed
    from ..report.curves import chart
    from ..report.page import html
    from ..report.study import read_study
    from ..storage.files import replace_file

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("Cannot compare over several ranks because runs are compared side by side in one process")

    settings = config.load(config.CompareConfig, configuration, overrides)
    began = perf_counter()
    with observed(console, settings.title, settings.labels, settings.rounds, settings.metric) as observer:
        outcome = compare.compare(settings, out, observer)
    seconds = perf_counter() - began
    table = Table(
        title=escape(settings.title),
        caption=f"{compare.caption(settings)} Brackets: 95 % bootstrap intervals.",
        caption_justify="left",
    )
    for i, column in enumerate(outcome.columns(brief=True)):
        table.add_column(escape(column.heading), justify="left" if i == 0 else "right", overflow="fold")
    for cells in outcome.cells(brief=True):
        table.add_row(*map(escape, cells))
    console.print(table)
    if (curves := chart(outcome, settings.title)) is not None:
        replace_file(out / "curves.svg", curves.encode())
    replace_file(out / "report.html", html(read_study([out])).encode())
    console.print(
        f"Trained for {seconds:.0f} s. Table: {out / 'table.md'}. Report: {out / 'report.html'}",
        highlight=False,
        markup=False,
    )


@app.command()
def sweep(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="A run, and a table [sweep].")],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the search (default: runs/NAME, numbered).")] = None,
) -> None:
    """Search for good values of a run's fields, and write the best configuration found.

    Given the folder of a search that was cut off, continues it.
    """
    from ..config import schema as config
    from ..experiments.sweep import sweep

    settings = config.load(config.SweepConfig, configuration, set_ or [])
    folder = out or free_folder(Path("runs") / configuration.stem)
    sweep(settings, folder, lambda line: console.print(line, highlight=False, markup=False))
    console.print(f"Best configuration: {folder / 'best.toml'}", highlight=False, markup=False)


@app.command()
def run(
    configuration: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="What to run; see docs/configuration.md.")
    ],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the result (default: runs/NAME, numbered).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
) -> None:
    """Train once, as a configuration says, and save the result."""
    from ..config import schema as config

    settings = config.load(config.RunConfig, configuration, set_ or [])
    named = Path("runs") / configuration.stem
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # by torchrun, after a rank was lost
    if restarted and not (out or settings.out):
        raise ValueError("Cannot restart the run because it has no folder of its own; use --out with torchrun")
    folder = out or (Path(settings.out) if settings.out else _latest(named) if resume else free_folder(named))
    _run(settings, folder, resume or restarted)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was cut off.")],
    set_: Overrides = None,
) -> None:
    """Continue a run from its newest checkpoint, to the same bits as if it had never been cut off.

    With --set rounds=N, continues a finished run up to N rounds.
    """
    from ..config import schema as config
    from ..report.run_info import started_from_python

    kept = folder / "config.toml"
    if not kept.exists():
        raise FileNotFoundError(f"Cannot resume {folder} because it is not a run's folder: it has no config.toml")
    if started_from_python(kept.read_text("utf-8")):
        raise ValueError(
            f"Cannot resume {folder} from the command line because it was started from Python; "
            "use fm.run(..., out=..., resume=True)"
        )
    _run(config.load(config.RunConfig, kept, set_ or []), folder, resume=True)


def _run(settings: RunConfig, folder: Path, resume: bool) -> None:
    from ..engine.ranks import Ranks, join, leave
    from ..storage import RunFolder

    join()
    ranks = Ranks.joined()
    folder = Path(ranks.broadcast(str(folder)))
    with _ending_on_request(ranks.size) as requests:
        result = settings.run(
            settings.algorithm,
            settings.selection,
            settings.seed,
            out=RunFolder(folder, settings.kept(exclude={"out"})),
            resume=resume,
            checkpoint_every=settings.checkpoint_every,
        )
    leave()
    if ranks.first:
        _summary(result, settings.target or {})
        console.print(f"Saved in {folder}", highlight=False, markup=False)
    if result.interrupted:
        raise typer.Exit(143 if requests else 130)


@contextmanager
def _ending_on_request(ranks: int) -> Iterator[list[int]]:
    """Let a request to end (SIGTERM) do what Ctrl-C does: the run is saved first. Gives the requests that came.

    Of several ranks, each ends at once: they could not agree on what to save.
    """
    requests: list[int] = []
    if ranks > 1:
        yield requests
        return

    def end(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        if len(requests) == 1:  # some ask several times, while the run is being saved
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield requests
    except KeyboardInterrupt:  # before the first round
        raise typer.Exit(143 if requests else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def free_folder(folder: Path) -> Path:
    """The folder, or its first numbered sibling that does not exist."""
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def _latest(folder: Path) -> Path:
    """The folder or its numbered sibling that `free_folder` gave last."""
    number = 2
    while folder.with_name(f"{folder.name}-{number}").exists():
        number += 1
    return folder if number == 2 else folder.with_name(f"{folder.name}-{number - 1}")


def _summary(result: Result, target: dict[str, float]) -> None:
    from ..core.history import METRICS
    from ..experiments.seed_statistics import last_value

    title = escape(f"{result.info['algorithm']}, {result.info['selection']}")
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_row("rounds", str(len(result.history)) + (" (interrupted)" if result.interrupted else ""))
    for metric in METRICS:
        if (value := last_value(result.history, metric)) is not None:
            table.add_row(metric.replace("_", " "), f"{value:.4f}")
    down, up = (sum(getattr(r, f"bytes_{way}") for r in result.history) / 1e6 for way in ("down", "up"))
    table.add_row("megabytes down, up", f"{down:.2f}, {up:.2f}")
    for metric, value in target.items():
        rounds, size = result.rounds_to(metric, value), result.bytes_to(metric, value)
        reached = "not reached" if rounds is None or size is None else f"round {rounds}, {size / 1e6:.2f} MB"
        table.add_row(f"{metric} {value:g}", reached)
    console.print(table)


@app.command("list")
def list_() -> None:
    """Show every algorithm, selector, data set, partition and model, with their fields."""
    import inspect

    from ..config import registry as registry

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
            fields = ", ".join(
                n if p.default is p.empty else f"{n}={p.default!r}"
                for n, p in inspect.signature(thing).parameters.items()
            )
            first = (inspect.getdoc(thing) or "").split("\n")[0]
            table.add_row(f"[bold]{name}[/]({escape(fields)})", escape(first))
        console.print(table, "")
    console.print("[bold]Data sets[/]: " + ", ".join(registry.datasets()))
