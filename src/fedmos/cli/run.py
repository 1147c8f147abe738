"""`fedmos run`, `fedmos resume` and `fedmos sweep`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .folders import free_folder, latest_folder
from .interrupts import command_line, continue_with
from .options import On, Overrides, Quiet

if TYPE_CHECKING:
    from ..config.schema import RunConfig
    from ..run.result import Result

console = Console(emoji=False)


def run(
    configuration: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="What to run; see docs/configuration.md.")
    ],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the result (default: runs/NAME, numbered).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train once from a configuration file, and save the result.

    A configuration that names classes of your own (mine.py:Name) runs their code.
    """
    from ..config.schema import RunConfig, load
    from ..storage import RunFolder

    settings = load(RunConfig, configuration, set_ or [])
    named = Path("runs") / configuration.stem
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # by torchrun, after a rank was lost
    if restarted and not (out or settings.out):
        raise ValueError("Cannot restart the run because it has no folder of its own; use --out with torchrun")
    folder = out or (Path(settings.out) if settings.out else latest_folder(named) if resume else free_folder(named))
    if not (resume or restarted) and RunFolder(folder).started:
        raise FileExistsError(f"Cannot write the run to {folder} because it exists; use --resume or another --out")
    anew = command_line("run", configuration, "--resume", overrides=set_ or [], out=folder)
    train(settings, folder, resume or restarted, anew, quiet)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was interrupted.")],
    set_: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its newest checkpoint; the result has the same bits as without the interruption.

    With --set rounds=N, continues a finished run up to N rounds.
    """
    from ..config.schema import RunConfig, load
    from ..report.run_info import started_from_python

    kept = folder / "config.toml"
    if not kept.exists():
        raise FileNotFoundError(f"Cannot resume {folder} because it is not a run's folder: it has no config.toml")
    if started_from_python(kept.read_text("utf-8")):
        raise ValueError(
            f"Cannot resume {folder} from the command line because it was started from Python; "
            "use fm.run(..., out=..., resume=True)"
        )
    again = command_line("resume", folder, overrides=set_ or [])
    train(load(RunConfig, kept, set_ or []), folder, True, again, quiet)


def sweep(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="A run, and its table `sweep`.")],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the search (default: runs/NAME, numbered).")] = None,
    on: On = None,
    quiet: Quiet = False,
) -> None:
    """Search for good values of a run's fields, and write the best configuration found.

    Given the folder of a search that was interrupted, continues it.
    """
    from ..config.schema import SweepConfig, load
    from ..experiments.sweep import sweep

    settings = load(SweepConfig, configuration, set_ or [])
    folder = out or free_folder(Path("runs") / configuration.stem)
    continue_with(lambda: command_line("sweep", configuration, overrides=set_ or [], out=folder, on=on))
    echo = partial(console.print, highlight=False, markup=False)
    sweep(settings, folder, echo, progress=not quiet, on=on)
    console.print(f"Best configuration: {folder / 'best.toml'}", highlight=False, markup=False)


def train(settings: RunConfig, folder: Path, resume: bool, again: str, quiet: bool) -> None:
    """Train a run on all ranks, and print a summary on rank 0.

    Args:
        settings: the run.
        folder: its folder.
        resume: whether to continue the run in the folder.
        again: the command that continues the run even if the folder has no checkpoint yet.
        quiet: whether to show no progress.
    """
    from ..engine.process_group import join, leave
    from ..engine.ranks import Ranks
    from ..storage import RunFolder

    join()
    ranks = Ranks.joined()
    folder = Path(ranks.broadcast(str(folder)))
    kept = folder / "config.toml"
    continue_with(lambda: command_line("resume", folder) if kept.exists() else again)
    with _interrupted_by_sigterm(ranks.size) as signals:
        result = settings.run(
            settings.algorithm,
            settings.selection,
            settings.seed,
            out=RunFolder(folder, settings.kept(exclude={"out"})),
            resume=resume,
            checkpoint_every=settings.checkpoint_every,
            progress=not quiet,
        )
    leave()
    if ranks.first:
        console.print(_summary(result, settings.target or {}))
        console.print(f"Saved in {folder}", highlight=False, markup=False)
    if result.interrupted:
        raise typer.Exit(143 if signals else 130)


@contextmanager
def _interrupted_by_sigterm(ranks: int) -> Iterator[list[int]]:
    """Treat SIGTERM like Ctrl-C, so that the run is saved before it ends. Yields the list of signals received.

    With several ranks, SIGTERM ends a rank at once, because ranks could not agree on what to save.
    """
    signals: list[int] = []
    if ranks > 1:
        yield signals
        return

    def end(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) == 1:  # further signals must not interrupt the saving
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield signals
    except KeyboardInterrupt:  # before the first round
        raise typer.Exit(143 if signals else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _summary(result: Result, target: dict[str, float]) -> Table:
    from ..core.history import METRICS
    from ..experiments.seed_statistics import last_value

    title = escape(f"{result.info['algorithm']}, {result.info['selection']}")
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_row("rounds", str(len(result.history)) + (" (interrupted)" if result.interrupted else ""))
    if result.best is not None:
        metric, record = str(result.info["keep_best"]), result.best_record
        table.add_row(f"best {metric.replace('_', ' ')}", f"{record.value(metric):.4f}, round {record.round}")
    for metric in (*METRICS, *result.history.metric_names):
        if (value := last_value(result.history, metric)) is not None:
            table.add_row(metric.replace("_", " "), f"{value:.4f}")
    down, up = (sum(getattr(r, f"bytes_{way}") for r in result.history) / 1e6 for way in ("down", "up"))
    table.add_row("megabytes down, up", f"{down:.2f}, {up:.2f}")
    if why := result.info.get("engine_why"):
        compiled = ", compiled" if result.info.get("compiled") else ""
        table.add_row("engine", escape(f"{result.info['engine']}{compiled}: {why}"))
    for metric, value in target.items():
        rounds, size = result.rounds_to(metric, value), result.bytes_to(metric, value)
        reached = "not reached" if rounds is None or size is None else f"round {rounds}, {size / 1e6:.2f} MB"
        table.add_row(f"{metric} {value:g}", reached)
    return table
