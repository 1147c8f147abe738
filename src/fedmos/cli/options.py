"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a field of the configuration, e.g. --set rounds=50. Repeatable."
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="CLUSTER",
        help="Train the runs with Ray: 'ray' for a cluster on this machine, or ray://HOST:10001 (default: processes).",
    ),
]
