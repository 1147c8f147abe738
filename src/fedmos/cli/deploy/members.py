"""`fedmos deploy retire`, `admit`, `reset`, `samples`, `release`, `rollback`, `members`: the clients of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import app, echo, require_flower

if TYPE_CHECKING:
    from ...flower.members.changes import Change
    from ...flower.members.member_list import MemberList

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the client.")]
RunPath = Annotated[Path, typer.Option("--run", metavar="RUN", help="The run folder of the server.")]
_HERE = Path()


@app.command()
def members(run: RunPath = _HERE) -> None:
    """Show the clients of a run: numbers, who is retired or in quarantine, and changes that wait."""
    from ...flower.members.changes import read_orders

    member_list = _member_list(run)
    orders, damaged = read_orders(run, member_list.handled)
    width = max(len(name) for name in member_list.names)
    for i, name in enumerate(member_list.names):
        echo(f"{i:>5}  {name:<{width}}  {_state(run, member_list, i)}".rstrip())
    for done in member_list.applied:
        echo(f"since round {(done.after or 0) + 1}: {done.change}")
    for number, reason in sorted(member_list.refused.items()):
        echo(f"without effect (change {number}): {reason}")
    for order in orders:
        echo(f"before the next round: {order.change}")
    for _, reason in sorted(damaged.items()):
        echo(reason)


@app.command()
def retire(client: Name, run: RunPath = _HERE) -> None:
    """Remove a client for good: it is never selected again, and the others' importances are scaled up."""
    from ...flower.members.changes import Change

    _order(run, Change(kind="retire", client=client))


@app.command()
def admit(
    client: Name,
    samples: Annotated[int, typer.Option(min=1, help="Its number of samples, which the operator agrees to.")],
    key: Annotated[
        str | None, typer.Option(metavar="FILE|SHA256:…", help="Its public key, or the fingerprint of it.")
    ] = None,
    run: RunPath = _HERE,
) -> None:
    """Add a client to a run, under the next number."""
    require_flower()
    from ...flower.members.changes import Change
    from ...flower.node_identities import fingerprint, read_key

    found = key if key is None or key.startswith("SHA256:") else fingerprint(read_key(Path(key)))
    number = _order(run, Change(kind="admit", client=client, samples=samples, key=found))
    echo(f"Its number is {number}. The node of the client says so where its configuration does not name the client:")
    echo(f"  --node-config 'client=\"{client}\" number={number} …'")
    echo("Register its public key at the SuperLink (flwr supernode register), if that is not done.")


@app.command()
def reset(client: Name, run: RunPath = _HERE) -> None:
    """Reset the state of a client to that of its first participation."""
    from ...flower.members.changes import Change

    _order(run, Change(kind="reset", client=client))


@app.command()
def samples(
    client: Name,
    count: Annotated[int, typer.Argument(min=1, metavar="COUNT", help="Its number of samples from now on.")],
    run: RunPath = _HERE,
) -> None:
    """Agree to another number of samples of a client, whose data has changed."""
    from ...flower.members.changes import Change

    _order(run, Change(kind="samples", client=client, samples=count))


@app.command()
def release(client: Name, run: RunPath = _HERE) -> None:
    """End the quarantine of a client."""
    from ...flower.members.changes import Change

    _order(run, Change(kind="release", client=client))


@app.command()
def rollback(
    to: Annotated[int, typer.Option("--round", min=1, help="The round whose result the run goes back to.")],
    run: RunPath = _HERE,
) -> None:
    """Go back to the model and state after an earlier round, of which a checkpoint is kept."""
    from ...flower.members.changes import Change
    from ...storage.checkpoint import Checkpoints

    _member_list(run)
    Checkpoints(run / "checkpoints").load_round(to)
    _order(run, Change(kind="rollback", round=to))


def _order(run: Path, change: Change) -> int:
    """Check a change against the clients of the run and order it; returns how many clients there were before."""
    from ...flower.members.changes import read_orders, write_order

    member_list = _member_list(run)
    member_list = member_list.with_orders(read_orders(run, member_list.handled)[0])
    member_list.check(change)
    write_order(run, change)
    when = "before the next round, or when the run is started again (fedmos deploy start)"
    echo(f"Ordered: {change}. It takes effect {when}.")
    return len(member_list.names)


def _member_list(run: Path) -> MemberList:
    """Return the clients of a run."""
    require_flower()
    from ...flower.members.member_list import MemberList

    member_list = MemberList.load(run)
    if member_list is None:
        raise ValueError(f"--run: {run.absolute()} must be the run folder of a deployment's server, with members.json")
    return member_list


def _state(run: Path, member_list: MemberList, i: int) -> str:
    """Describe a client in the last round."""
    from ...flower.local.progress import DeploymentProgress

    if i in member_list.retired:
        return f"retired since round {(member_list.retired[i] or 0) + 1}"
    records = DeploymentProgress(run).new_records()
    if not records:
        return ""
    last = records[-1]
    quarantined = "in quarantine" if i in last["quarantined"] else ""
    refused = last["refused"].get(str(i))
    return quarantined or (f"refused in round {last['round']}: {refused}" if refused else "")
