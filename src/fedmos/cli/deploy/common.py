"""What the commands of `fedmos deploy` share: their group, the configuration argument, and output."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..group import CommandGroup

if TYPE_CHECKING:
    from ...config.schema import RunConfig

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Run a configuration on real clients, over Flower.",
    epilog="Start with: fedmos deploy local --clients 4",
)
console = Console(emoji=False)

Configuration = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG.toml]",
        help="What to run, as for `fedmos run` (default: FedMoS on digits).",
        show_default=False,
    ),
]


def require_flower() -> None:
    """Check that Flower is installed."""
    from ...flower import require_flower as check

    check()


def load_configuration(configuration: Path | None, overrides: list[str]) -> RunConfig:
    """Return the configuration of a file, or the built-in one, with overrides; it is validated."""
    from ...config import schema as config

    if configuration is not None:
        settings = config.load(config.RunConfig, configuration, overrides)
    else:
        with resources.as_file(resources.files("fedmos.config").joinpath("builtin/deploy.toml")) as path:
            settings = config.load(config.RunConfig, path, overrides)
    if settings.data.of_clients:
        require_flower()
        from ...flower.deployment import Deployment

        Deployment.of(settings)  # the data is checked by each client
    else:
        settings.check()
    return settings


def echo(line: str) -> None:
    """Print a line as it is."""
    console.print(escape(line), highlight=False, soft_wrap=True)
