"""`fedmos deploy`: run a configuration on real clients, over Flower."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from .folders import free_folder
from .group import CommandGroup
from .options import Overrides

if TYPE_CHECKING:
    from ..config.schema import RunConfig

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Run a configuration on real clients, over Flower.",
    epilog="Start with: fedmos deploy local --clients 4",
)
console = Console()

Configuration = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG.toml]",
        help="What to run, as for `fedmos run` (default: FedMoS on digits).",
        show_default=False,
    ),
]
_FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the app; its name becomes the app's.")],
    configuration: Configuration = None,
    set_: Overrides = None,
) -> None:
    """Write a Flower app from a configuration: pyproject.toml, server_app.py, client_app.py.

    `flwr run DIR` starts it on a SuperLink; docs/deploy.md describes how to set one up.
    """
    from ..flower.local.app_template import write_app

    settings = _load(configuration, set_ or [])
    write_app(folder, settings.kept(exclude={"out"}), settings.out or "")
    _echo(f"Wrote {folder}. Start it with: flwr run {folder} NAME-OF-SUPERLINK --run-config 'out=\"/where/to/save\"'")


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write certificates and keys.")],
    host: Annotated[list[str], typer.Option(help="A host name or address of the server, for clients. Repeatable.")],
    client: Annotated[list[str] | None, typer.Option(help="Name of a client, for a key pair. Repeatable.")] = None,
    days: Annotated[int, typer.Option(min=1, help="Days for which the certificates are valid.")] = 365,
) -> None:
    """Create a certificate authority, the server's certificate, and a key pair for each client."""
    _require_flower()
    from ..flower.local.certificates import make_certificates, make_key

    made = make_certificates(folder, host, days)
    _echo(f"For the server: {made.server} and {made.server_key}; for every client: {made.authority}")
    _echo(f"Keep secret: {made.authority_key}")
    for name in client or []:
        pair = make_key(folder / name)
        _echo(f"{name}: {pair.private} is for this client only; register {pair.public} at the SuperLink")


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
) -> None:
    """Run a deployment on this machine: a SuperLink, and a SuperNode for every client.

    All processes use loopback, TLS, and keys created for this run. They are stopped at the end, on Ctrl-C, and on
    errors. Given the folder of an interrupted run, the command continues it.
    """
    _require_flower()
    from ..flower.deployment import Deployment
    from ..flower.local.app_template import CONFIGURATION, write_app
    from ..flower.local.local_deployment import LocalDeployment
    from ..flower.local.process_group import exit_on_signals

    overrides = [*(set_ or []), *([] if clients is None else [f"data.clients={clients}"])]
    settings = _load(configuration, overrides)
    folder = out or free_folder(Path("runs") / f"{configuration.stem if configuration else 'deploy'}-local")
    names = Deployment.of(settings).names
    if not (folder / "app").exists():
        write_app(folder / "app", settings.kept(exclude={"out"}))
    _echo(f"Starting a SuperLink and {len(names)} SuperNodes; logs: {folder / 'logs'}")
    try:
        with (
            exit_on_signals(),
            LocalDeployment(folder, names, poll, preload=folder / "app" / "app" / CONFIGURATION) as deployment,
        ):
            state = deployment.run(folder / "app", folder / "run", on_poll=_print_rounds(folder / "run"))
            if not state.completed:
                raise RuntimeError(f"The run has failed: {state.details}\n{deployment.server_log()}")
    except KeyboardInterrupt:
        _echo(f"Interrupted; all processes are stopped. Continue with the same command and --out {folder}")
        raise typer.Exit(130) from None
    _echo(f"Saved in {folder / 'run'}")


@app.command(context_settings=_FORWARDED)
def node(context: typer.Context) -> None:
    """Run a client's SuperNode: flower-supernode with shorter pauses, which can reconnect at once after it was killed.

    Takes --poll SECONDS (default 0.5), --memory FILE, and all options of flower-supernode.
    """
    _require_flower()
    program = Path(__file__).parents[1] / "flower" / "local" / "supernode.py"
    os.execv(sys.executable, [sys.executable, "-P", str(program), *context.args])


@app.command(context_settings=_FORWARDED)
def apps(context: typer.Context) -> None:
    """Run the apps of a SuperLink or SuperNode with --isolation process; replaces flower-superexec."""
    _require_flower()
    os.execv(sys.executable, [sys.executable, "-m", "fedmos.flower.local.superexec", *context.args])


@app.command()
def export(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration of the deployment.")],
    client: Annotated[str, typer.Option(help="The name of the client.")],
    state: Annotated[Path, typer.Option(help="The folder `state` of the client's node.")],
    model: Annotated[Path, typer.Option(help="The global model, as written by `fedmos export RUN`.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("own.safetensors"),
) -> None:
    """Write a client's own model to a file, on the client's machine; nothing is sent."""
    from ..flower.personal_export import export_personal

    made = export_personal(configuration, client, state=state, model=model, out=out)
    _echo(f"Model of {client} after its round {made.round}: {out}")


def _require_flower() -> None:
    from ..flower import require_flower

    require_flower()


def _load(configuration: Path | None, overrides: list[str]) -> RunConfig:
    from ..config import schema as config

    if configuration is not None:
        settings = config.load(config.RunConfig, configuration, overrides)
    else:
        with resources.as_file(resources.files("fedmos.config").joinpath("builtin/deploy.toml")) as path:
            settings = config.load(config.RunConfig, path, overrides)
    settings.check()
    return settings


def _print_rounds(folder: Path) -> Callable[[], None]:
    """Return a function that prints the rounds completed since its last call."""
    from ..flower.local.progress import DeploymentProgress

    progress = DeploymentProgress(folder)

    def print_new_rounds() -> None:
        for record in progress.new_records():
            _echo(_line(record))

    return print_new_rounds


def _line(record: dict[str, Any]) -> str:
    from ..core.history import METRICS

    outcome = "abandoned, the model is unchanged" if record["abandoned"] else f"{len(record['cohort'])} clients"
    values = [f"{name.replace('_', ' ')} {record[name]:.4f}" for name in METRICS if record.get(name) is not None]
    if record.get("epsilon") is not None:
        values.append(f"ε {record['epsilon']:.3g}")
    return ", ".join([f"Round {record['round']}: {outcome}", *values, f"{record['seconds']:.1f} s"])


def _echo(line: str) -> None:
    console.print(escape(line), highlight=False, soft_wrap=True)
