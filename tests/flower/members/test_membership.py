"""Clients that are retired, admitted and reset, and whose data grows, while a run goes on or between its parts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from fedmos.flower import wire
from fedmos.flower.channel import OutageError
from fedmos.flower.members.changes import Change, write_order
from helpers.changed_runs import assert_equals, both, in_parts, restarted, with_clients
from helpers.flower_runs import EVERYONE, OwnDeployed, arguments, federation

NAMES = ["a", "b", "c", "d"]
SCAFFOLD = {"algorithm": fm.Scaffold(lr=0.1), "selection": EVERYONE}
FEDAVG = {"algorithm": fm.FedAvg(lr=0.1), "selection": fm.Uniform(m=3)}
UCB = {"algorithm": fm.FedHBM(lr=0.1, beta=0.5), "selection": fm.UCB(m=2)}


@pytest.fixture
def own(tmp_path, clock) -> Callable[..., OwnDeployed]:
    def make(names: list[str] = NAMES, clients: int = 5, **given: Any) -> OwnDeployed:
        deploy = given.pop("deploy", {})
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return OwnDeployed(folder, arguments(rounds=6, **given), federation(clients), names, **deploy)

    return make


def after(made: OwnDeployed, t: int, *changes: Change, then: Callable[[], None] = lambda: None) -> None:
    """Order changes when a round is done."""

    def on_round(record: Any) -> None:
        if record.round == t and not ordered:
            ordered.append(t)
            for change in changes:
                write_order(made.folder / "run", change)
            then()

    ordered: list[int] = []
    made.given["callbacks"] = [on_round]


def simulation(clients: int, **given: Any) -> dict[str, Any]:
    return arguments(rounds=6, data=federation(clients), **given)


def change(kind: str, client: str, **values: Any) -> Change:
    return Change(kind=kind, client=client, **values)


@pytest.mark.parametrize("method", [SCAFFOLD, FEDAVG, UCB], ids=["Scaffold", "FedAvg", "UCB"])
def test_a_client_is_retired_while_the_run_goes_on(own, method):
    """From the next round on, the run is that of the others, whose importances are scaled up."""
    made = own(**method)
    after(made, 2, change("retire", "d"))
    result = made.run()
    sums = restarted("c", "c_i") if method is SCAFFOLD else lambda snapshot: snapshot
    edit = both(with_clients(3), sums)
    if method is UCB:  # the selector's state has a number for each client, also for the retired one
        assert all(3 not in r.cohort for r in result.history[2:])
    else:
        assert_equals(result, in_parts([(simulation(4, **method), 2), (simulation(3, **method), 6)], edit))
    assert [r.changes for r in result.history] == [[], [], ["d: retired"], [], [], []]
    asked = {m.metadata.dst_node_id for m in made.network.sent if wire.round_of(m.content) > 1}
    assert 103 not in asked
    assert [r.available for r in result.history] == [4, 4, 3, 3, 3, 3]


@pytest.mark.parametrize("method", [SCAFFOLD, FEDAVG, UCB], ids=["Scaffold", "FedAvg", "UCB"])
def test_a_client_is_admitted_while_the_run_goes_on(own, method):
    """It has the next number and never took part; the numbers of the others stay."""
    made = own(**method)
    n = int(made.data.sizes[4])
    after(made, 2, change("admit", "e", samples=n), then=lambda: made.connect("e", 4))
    result = made.run()
    sums = restarted("c", "c_i") if method is SCAFFOLD else lambda snapshot: snapshot
    edit = both(with_clients(5), sums)
    assert_equals(result, in_parts([(simulation(4, **method), 2), (simulation(5, **method), 6)], edit))
    assert result.history[2].changes == ["e: admitted"]
    assert any(4 in r.cohort for r in result.history[2:])


def test_changes_of_a_stopped_run(own):
    """They take effect when it is started again; the configuration may name the admitted client by then."""
    made = own(**SCAFFOLD)
    with pytest.raises(Stopped):
        made.run(callbacks=[stop_after(2)])
    write_order(made.folder / "run", change("retire", "d"))
    write_order(made.folder / "run", change("admit", "e", samples=int(made.data.sizes[4])))
    made.connect("e", 4)
    result = made.run()
    assert [r.cohort for r in result.history] == [[0, 1, 2, 3]] * 2 + [[0, 1, 2, 4]] * 4
    n = made.data.sizes.double()[[0, 1, 2, 4]]
    assert torch.allclose(torch.tensor(result.history[2].weights, dtype=torch.float64), n / n.sum())
    from fedmos.flower import Deploy

    longer = Deploy(clients=[*NAMES, "e"], wait=1.0, rejoin=0.2, poll=0.001)
    assert len(made.run(rounds=8, deploy=longer).history) == 8


def test_a_killed_server_applies_changes_once(own):
    """Killed in each round after the changes: the same bits."""
    made, undisturbed, killed = own(**SCAFFOLD), own(**SCAFFOLD), set()
    n = int(made.data.sizes[4])
    for one in (made, undisturbed):
        after(one, 2, change("retire", "d"), change("admit", "e", samples=n), then=lambda one=one: one.connect("e", 4))

    def tamper(request: Any, reply: Any) -> Any:
        t = wire.round_of(request.content)
        if request.metadata.message_type == wire.TRAIN and t >= 2 and t not in killed:
            killed.add(t)
            raise Stopped
        return reply

    made.network.tamper = tamper
    for _ in range(4):
        with pytest.raises(Stopped):
            made.run()
    result, expected = made.run(), undisturbed.run()
    assert killed == {2, 3, 4, 5}
    assert [r.cohort for r in result.history] == [[0, 1, 2, 3]] * 2 + [[0, 1, 2, 4]] * 4
    assert torch.equal(result.params, expected.params)
    assert torch.equal(result.server_state["c"], expected.server_state["c"])


def test_a_client_that_lost_its_state_is_reset(own, caplog):
    """It is refused with the command that helps, then starts as at its first round, and the sums begin anew."""
    made = own(**SCAFFOLD)

    def lose() -> None:
        (made.client_folder("b") / "state-1.safetensors").unlink()

    after(made, 2, then=lose)
    with caplog.at_level(logging.WARNING, "fedmos"), pytest.raises(Stopped):
        made.run(callbacks=[*made.given["callbacks"], stop_after(3)])
    assert "fedmos deploy reset b" in caplog.text
    write_order(made.folder / "run", change("reset", "b"))
    result = made.run(callbacks=[])
    assert "its stored state is missing or damaged" in result.history[2].refused["1"]
    assert result.history[3].changes == ["b: reset"]
    assert [r.refused for r in result.history[3:]] == [{}] * 3
    c = result.server_state["c"]
    own_c = [load_file(newest(made, name, 5))["c_i"] for name in NAMES]
    p = made.data.sizes[:4].double() / made.data.sizes[:4].sum()
    torch.testing.assert_close(c, sum(w * v for w, v in zip(p.float(), own_c, strict=True)), rtol=1e-4, atol=1e-6)


def newest(made: OwnDeployed, name: str, t: int) -> Path:
    """The file of a client's state after a round; each change begins another folder."""
    (path,) = (made.folder / "state" / name).glob(f"*/state-{t}.safetensors")
    return path


def test_data_that_grew(own, caplog):
    """The client is left out, with the command in the log, until the operator agrees to the new number."""
    made = own(**FEDAVG | {"selection": EVERYONE})
    bigger = tuple(torch.cat([v, v[:2]]) for v in made.samples["b"])

    def grow() -> None:
        made.samples["b"] = bigger
        made.network.nodes[101].starts += 1

    after(made, 2, then=grow)
    n = len(bigger[0])
    with caplog.at_level(logging.WARNING, "fedmos"), pytest.raises(Stopped):
        made.run(callbacks=[*made.given["callbacks"], stop_after(4)])
    assert f"fedmos deploy samples b {n}" in caplog.text
    write_order(made.folder / "run", change("samples", "b", samples=n))
    result = made.run(callbacks=[])
    assert [r.late or list(map(int, r.refused)) for r in result.history] == [[], [], [1], [1], [], []]
    assert "its data has changed" in result.history[2].refused["1"]
    sizes = [4, n, 6, 5]
    assert result.history[4].weights == pytest.approx([v / sum(sizes) for v in sizes])


def test_retiring_ends_an_outage(own, clock, caplog):
    """The round that waits for the client is played again without it; no round is lost."""
    made = own(**SCAFFOLD | {"system": fm.System(quorum=1.0)})
    listed, began = made.network.get_nodes, []

    def on_round(record: Any) -> None:
        if record.round == 2:
            made.network.nodes[103].online = False
            began.append(clock.now)

    def get_nodes() -> Any:
        if began and clock.now - began[0] > 3600:
            began[0] = float("inf")
            write_order(made.folder / "run", change("retire", "d"))
        return listed()

    made.given["callbacks"] = [on_round]
    made.network.get_nodes = get_nodes
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert not any(r.abandoned or r.late for r in result.history)
    edit = both(with_clients(3), restarted("c", "c_i"))
    assert_equals(result, in_parts([(simulation(4, **SCAFFOLD), 2), (simulation(3, **SCAFFOLD), 6)], edit))
    assert "Round 3 waits for 1 of these clients" in caplog.text


def test_retiring_before_a_new_start_after_the_limit(own, clock):
    made = own(**SCAFFOLD | {"system": fm.System(quorum=1.0)}, deploy={"outage_limit": 600.0})
    after(made, 2, then=lambda: setattr(made.network.nodes[103], "online", False))
    with pytest.raises(OutageError, match="retire clients that do not come back before"):
        made.run()
    write_order(made.folder / "run", change("retire", "d"))
    result = made.run()
    assert [r.cohort for r in result.history[2:]] == [[0, 1, 2]] * 4
    assert not any(r.abandoned for r in result.history)


def test_a_retired_client_is_refused(own, caplog):
    made = own(**FEDAVG)
    after(made, 1, change("retire", "d"))
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run()
    assert "client 'd' is retired" in caplog.text


def test_the_order_of_clients_is_kept(own):
    made = own(**FEDAVG)
    made.run()
    from fedmos.flower import Deploy

    def again(clients: list[str]) -> None:
        made.run(rounds=8, deploy=Deploy(clients=clients, wait=1.0, poll=0.001))

    with pytest.raises(ValueError, match=r"order of 'clients' has changed: client 0 is 'a', got 'b'; .* a, b, c, d$"):
        again(["b", "a", "c", "d"])
    with pytest.raises(ValueError, match="'clients' names e; admit further clients by `fedmos deploy admit NAME`"):
        again([*NAMES, "e"])
    with pytest.raises(ValueError, match=r"'clients' lacks d; .* `fedmos deploy retire NAME`"):
        again(["a", "b", "c"])


def test_clients_with_another_order_are_refused(own, caplog):
    """Each client states its number, so that its random streams and state are those of its own place."""
    made = own(**FEDAVG, deploy={"wait": 5.0})
    from fedmos.flower import Deploy, client_app

    other = made.given | {"deploy": Deploy(clients=["b", "a", "c", "d"])}
    for number in (100, 101):
        made.network.nodes[number]._app = lambda: client_app(other, data=made.samples.__getitem__)
    with caplog.at_level(logging.WARNING, "fedmos"), pytest.raises(OutageError):
        made.run(deploy=Deploy(clients=NAMES, wait=1.0, poll=0.001, outage_limit=60.0))
    assert "its 'client' is 1 instead of 0" in caplog.text


REFUSED = {
    "no such client": (change("retire", "x"), r"Cannot retire 'x' because the run has no such client; .* a, b, c, d"),
    "retired already": (change("reset", "d"), "Cannot reset 'd' because it is retired"),
    "a name again": (change("admit", "A", samples=3), "Cannot admit 'A' because there is a client 'a'"),
    "back again": (change("admit", "d", samples=3), "a client that comes back gets a new name"),
    "too far back": (Change(kind="rollback", round=9), "the run has played 2 rounds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_changes_have_no_effect(own, caplog, name):
    made = own(**FEDAVG)
    order, sentence = REFUSED[name]
    after(made, 2, change("retire", "d"), order)
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert len(result.history) == 6
    (reason,) = json.loads((made.folder / "run" / "members.json").read_text())["refused"].values()
    import re

    assert re.search(sentence, reason)
    assert reason in caplog.text


def test_private_runs_keep_their_id(own):
    """Clients count their answers by it, so a change must not let them answer more often."""
    privacy = fm.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-5)
    made = own(algorithm=fm.FedAvg(lr=0.1), selection=fm.Bernoulli(rate=0.9), privacy=privacy)
    after(made, 2, change("reset", "b"), change("retire", "d"))
    result = made.run()
    member_list = json.loads((made.folder / "run" / "members.json").read_text())
    assert len(member_list["runs"]) == 1
    assert [done["change"]["kind"] for done in member_list["applied"]] == ["reset"]
    assert "the noise and ε of 'privacy' are computed for the clients" in "".join(member_list["refused"].values())
    assert len(result.history) == 6


class Stopped(BaseException):
    """What nobody catches."""


def stop_after(t: int) -> Callable[[Any], None]:
    """Stop the server in the middle of the next round, which clients have answered."""

    def stop(record: Any) -> None:
        if record.round == t + 1:
            raise Stopped

    return stop
