"""`fedmos deploy register`, `start` and `doctor`: the operator's commands on a machine of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import app, echo, require_flower

if TYPE_CHECKING:
    from ...flower.local.control import ControlClient

Server = Annotated[Path, typer.Argument(metavar="SERVER.toml", help="The file of the server's installation.")]


def _control(file: Path) -> ControlClient:
    """Return the client of the SuperLink of an installation, on the server."""
    from ...flower.local.control import ControlClient
    from ...flower.local.installations import ServerInstallation, prepare

    installed = ServerInstallation.read(file)
    prepare(installed)
    home = installed.state / "operator"
    return ControlClient(installed.settings.superlink, installed.certificates.authority, home)


@app.command()
def register(
    file: Server,
    keys: Annotated[list[Path], typer.Argument(metavar="KEY.pub...", help="Public keys of clients.")],
) -> None:
    """Register the public keys of clients at the SuperLink, on the server; the same as `flwr supernode register`."""
    require_flower()
    from ...flower.node_identities import fingerprint, read_key

    fingerprints = {key: fingerprint(read_key(key)) for key in keys}
    control = _control(file)
    control.wait()
    for key, found in fingerprints.items():
        number = control.register(key)
        what = "is registered already" if number is None else f"is node {number}"
        echo(f"{key} {what}, with the fingerprint {found}")


@app.command()
def start(
    file: Server,
    app_: Annotated[Path, typer.Argument(metavar="APP", help="The folder of the app.")],
    out: Annotated[Path, typer.Option(help="The run folder; a run that it has is continued.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of the run, and show the server's log.")
    ] = False,
) -> None:
    """Start a run on the server; the same as `flwr run` with the run configuration `out` and `test`."""
    require_flower()
    import subprocess

    from ...config.installation import read_server
    from ...flower.monitoring.status import finished, is_served

    if not (app_ / "pyproject.toml").is_file():
        raise ValueError(f"deploy start: 'APP' must be the folder of an app, with pyproject.toml, got {str(app_)!r}")
    if is_served(out):
        raise ValueError(
            f"Cannot start a run in {out} because another run writes it; stop that run, or use another --out"
        )
    control, settings = _control(file), read_server(file)[0]
    given = {"out": str(out.absolute())} | ({} if settings.test is None else {"test": str(file.absolute())})
    control.wait()
    done = finished(out)
    run = control.start(app_, given)
    if done is None:
        echo(f"Run {run} has started; its folder is {out}. What it does: fedmos deploy status {out}")
    else:
        echo(
            f"The run in {out} is finished, after {done.completed} of {done.rounds} rounds. Run {run} ends at once, "
            "unless the configuration of the app has more rounds now; to train again, use another --out"
        )
    if not wait:
        return
    try:
        subprocess.run(control.follow_command(run), env=control.environment, check=False)
    except KeyboardInterrupt:
        echo(f"The run goes on at the server. What it does: fedmos deploy status {out}")
        raise typer.Exit(130) from None
    state = control.state(run)
    if not state.completed:
        raise RuntimeError(f"The run has failed: {state.details}")
    echo(f"Run {run} is completed; its folder is {out}")


@app.command()
def doctor(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="server.toml or client.toml of this machine.")],
    offline: Annotated[bool, typer.Option("--offline", help="Leave out the checks that need the server.")] = False,
) -> None:
    """Check an installation: keys, permissions, certificates, clock, ports. Status 1 if something is wrong."""
    require_flower()
    from ...flower.local.doctor import examine

    findings = examine(file, offline)
    for finding in findings:
        echo(finding.line)
    wrong = sum(finding.wrong for finding in findings)
    echo(f"{wrong} of {len(findings)} checks found a fault." if wrong else f"All {len(findings)} checks passed.")
    if wrong:
        raise typer.Exit(1)
