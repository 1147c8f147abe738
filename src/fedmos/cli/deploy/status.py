"""`fedmos deploy status`: what a deployment's server does, read from its run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from .common import app, console, require_flower

if TYPE_CHECKING:
    from ...flower.monitoring.status import ClientStatus, DeploymentStatus

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_ENDED = ("finished", "stopped", "failed")


@app.command()
def status(
    run: Annotated[Path, typer.Argument(metavar="[RUN]", help="The run folder of the server.")] = Path("."),
    watch: Annotated[bool, typer.Option("--watch", help="Show it until the run ends or Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.2, max=3600.0, help="Seconds between two looks, with --watch.")] = 2.0,
) -> None:
    """Show rounds, clients, outages and refusals of a deployment, from the files in its run folder.

    The command opens no connection, so it works on the server's machine while the network or the SuperLink is down. The
    exit code is 1 if the run failed or its server app is gone.
    """
    require_flower()
    if watch:
        code = _watch(run, every)
    else:
        view, code = describe(run)
        console.print(view)
    raise typer.Exit(code)


def describe(run: Path, now: Callable[[], float] = time.time) -> tuple[Group, int]:
    """Return what is shown of a run, and the exit code."""
    from ...flower.monitoring.status import DeploymentStatus, is_served

    found = DeploymentStatus.read(run)
    alive = is_served(run) or found.state in _ENDED or (found.state == "starting" and now() - found.updated < _MINUTE)
    lines = _lines(run, found, alive, now())
    code = 1 if found.state == "failed" or not alive else 0
    return Group(*(escape(line) for line in lines), _clients(found, now())), code


def _watch(run: Path, every: float) -> int:
    from ...flower.monitoring.status import DeploymentStatus

    view, code = describe(run)
    with Live(view, console=console, auto_refresh=False) as live:
        try:
            while DeploymentStatus.read(run).state not in _ENDED:
                time.sleep(every)
                view, code = describe(run)
                live.update(view, refresh=True)
        except KeyboardInterrupt:
            return 0
    return code


def _lines(run: Path, found: DeploymentStatus, alive: bool, now: float) -> list[str]:
    state = found.state if alive else "its server app is gone; start the run again (fedmos deploy start)"
    lines = [f"{run}: {state}, {found.completed} of {found.rounds or '?'} rounds, {_ago(found.updated, now)}"]
    if found.waiting is not None and alive:
        wait = found.waiting
        lines.append(
            f"{wait.purpose} waits for {wait.needed} of these clients, for {_duration(now - wait.since)}: "
            f"{', '.join(wait.missing)}"
        )
    if found.error:
        lines.append(f"Reason: {found.error}")
    if found.last:
        lines.append(_last_round(found.last))
    lines.append(
        f"Sent {found.bytes_down / 1e6:.4g} MB, received {found.bytes_up / 1e6:.4g} MB since the server app started; "
        f"{found.abandoned} rounds abandoned, {found.refused_nodes} nodes refused"
    )
    return lines


def _last_round(last: dict[str, Any]) -> str:
    shown = {name: value for name, value in last.items() if isinstance(value, float) and name != "seconds"}
    values = [f"{'ε' if name == 'epsilon' else name.replace('_', ' ')} {value:.4g}" for name, value in shown.items()]
    facts = [f"{last['cohort']} clients", *([f"{last['late']} late"] if last["late"] else [])]
    facts += [*(["abandoned"] if last["abandoned"] else []), f"{last['seconds']:.1f} s", *values]
    return f"Round {last['round']}: {', '.join(facts)}"


def _clients(found: DeploymentStatus, now: float) -> Table:
    table = Table("client", "state", "last seen", "replies", "late", "refused", "last problem")
    for client in found.clients:
        refused = ", ".join(f"{n} {reason}" for reason, n in sorted(client.refused.items())) or "0"
        seen = "never" if client.last_seen is None else _ago(client.last_seen, now)
        row = (client.name, _state(client), seen, str(client.replies), str(client.late), refused, client.problem)
        table.add_row(*map(escape, row))
    return table


def _state(client: ClientStatus) -> str:
    if client.quarantined:
        return "in quarantine"
    if not client.connected:
        return "away"
    return "working" if client.asked else "connected"


def _ago(moment: float, now: float) -> str:
    return f"{_duration(now - moment)} ago"


def _duration(seconds: float) -> str:
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
