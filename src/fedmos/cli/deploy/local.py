"""`fedmos deploy local`: a deployment on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..folders import free_folder
from ..options import Overrides
from .common import Configuration, app, echo, load_configuration, require_flower


@app.command()
def local(
    configuration: Configuration = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of clients (default: the configuration's).")
    ] = None,
    set_: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the deployment (default: runs/NAME-local, numbered).")
    ] = None,
    poll: Annotated[
        float | None,
        typer.Option(min=0.01, max=60.0, help="Seconds between a client's queries (default: depends on their number)."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Flower's own programs and polling, which is slower.")] = False,
) -> None:
    """Run a deployment on this machine: a SuperLink, and a SuperNode for every client.

    All processes use loopback, TLS, and keys created for this run. They are stopped at the end, on Ctrl-C, and on
    errors. Given the folder of an interrupted run, the command continues it.
    """
    require_flower()
    from ...flower.deployment import Deployment
    from ...flower.local.app_template import CONFIGURATION, keep_app
    from ...flower.local.local_deployment import LocalDeployment
    from ...flower.local.process_group import exit_on_signals

    overrides = [*(set_ or []), *([] if clients is None else [f"data.clients={clients}"])]
    kept = None if out is None else out / "app" / "app" / CONFIGURATION
    if configuration is None and not overrides and kept is not None and kept.exists():
        configuration = kept
    settings = load_configuration(configuration, overrides)
    if settings.data.of_clients:
        raise ValueError(
            "Cannot run data.name = 'clients' with deploy local because its clients have no files of their own; use "
            "fedmos deploy client for each of them"
        )
    folder = out or free_folder(Path("runs") / f"{configuration.stem if configuration else 'deploy'}-local")
    names = Deployment.of(settings).names
    preload = keep_app(folder / "app", settings.kept(exclude={"out"}))
    echo(f"Starting a SuperLink and {len(names)} SuperNodes; logs: {folder / 'logs'}")
    try:
        with (
            exit_on_signals(),
            LocalDeployment(folder, names, poll, preload, plain) as deployment,
        ):
            state = deployment.run(folder / "app", folder / "run", on_poll=_print_rounds(folder / "run"))
            if not state.completed:
                raise RuntimeError(f"The run has failed: {state.details}\n{deployment.server_log()}")
    except KeyboardInterrupt:
        echo(f"Interrupted; all processes are stopped. Continue with the same command and --out {folder}")
        raise typer.Exit(130) from None
    echo(f"Saved in {folder / 'run'}")


def _print_rounds(folder: Path) -> Callable[[], None]:
    """Return a function that prints the rounds completed since its last call."""
    from ...flower.local.progress import DeploymentProgress

    progress = DeploymentProgress(folder)

    def print_new_rounds() -> None:
        for record in progress.new_records():
            echo(_line(record))

    return print_new_rounds


def _line(record: dict[str, Any]) -> str:
    from ...core.history import METRICS

    outcome = "abandoned, the model is unchanged" if record["abandoned"] else f"{len(record['cohort'])} clients"
    values = [f"{name.replace('_', ' ')} {record[name]:.4f}" for name in METRICS if record.get(name) is not None]
    if record.get("epsilon") is not None:
        values.append(f"ε {record['epsilon']:.3g}")
    return ", ".join([f"Round {record['round']}: {outcome}", *values, f"{record['seconds']:.1f} s"])
