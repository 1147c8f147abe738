"""A deployment does what the simulation does: the same cohorts, weights, bytes and bits; and it stands what clients send.

Here the network is a grid in this process (`flower_network`); processes on a real one are in `test_deploy`.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from safetensors.torch import load_file

from fedmos.config.schema import RunConfig, load
from fedmos.config.tables import DeployConfig
from fedmos.flower import Deploy, client_app, reply_collector, server_app, wire
from fedmos.flower.client_folder import ClientFolder
from fedmos.flower.deployment import Deployment
from fedmos.flower.server import serve
from flower_network import Network
from test_conformance import EACH, Case

CLIENTS, ROUNDS = 6, 4


def federation(clients: int = CLIENTS) -> fm.FederatedData:
    g = torch.Generator().manual_seed(3)
    sizes = [4, 9, 6, 5, 12, 7, 8, 10][:clients]
    pairs = [(torch.randn(n, 5, generator=g), torch.randint(3, (n,), generator=g)) for n in sizes]
    return fm.FederatedData.from_arrays(
        pairs, test=(torch.randn(40, 5, generator=g), torch.randint(3, (40,), generator=g))
    )


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def arguments(**changes: Any) -> dict[str, Any]:
    given = {
        "model": model(),
        "data": federation(),
        "algorithm": fm.FedAvg(lr=0.1),
        "selection": fm.Uniform(m=3),
        "rounds": ROUNDS,
        "local_steps": 3,
        "batch_size": 4,
        "engine": "loop",
        "seed": 7,
        "device": "cpu",
    }
    return given | changes


class Deployed:
    """A deployment in this process, to be started as often as one likes."""

    def __init__(self, folder: Path, given: dict[str, Any], **deploy: Any) -> None:
        self.folder = folder
        self.given = given | {"deploy": Deploy(**{"wait": 1.0, "rejoin": 0.2, "poll": 0.001} | deploy)}
        names = Deployment.of(self.given).names
        self.network = Network(lambda: client_app(self.given), folder / "state", names)

    def run(self, **changes: Any) -> fm.Result:
        return serve(self.network, Deployment.of(self.given | changes), self.folder / "run")


@pytest.fixture
def deployed(tmp_path):
    def make(given: dict[str, Any] | None = None, **deploy: Any) -> Deployed:
        return Deployed(tmp_path, given or arguments(), **deploy)

    return make


FACTS = ("round", "cohort", "weights", "bytes_down", "bytes_up", "available", "probed", "abandoned", "accuracy")


def assert_same(got: fm.Result, expected: fm.Result, exact: bool = True) -> None:
    for mine, theirs in zip(got.history, expected.history, strict=True):
        for fact in FACTS:
            assert getattr(mine, fact) == getattr(theirs, fact), (mine.round, fact)
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(got.params, expected.params, **tolerance)
    for name, v in expected.server_state.items():
        torch.testing.assert_close(got.server_state[name], v, **tolerance)


# -------------------------------------------------------------------------------- the same as simulated

SELECTORS = {
    "Uniform": fm.Uniform(m=3),
    "Full": fm.Full(),
    "MD": fm.MD(m=3),
    "Bernoulli": fm.Bernoulli(rate=0.5),
    "Cyclic": fm.Cyclic(m=2),
    "ACS": fm.ACS(m=3),
    "CACS": fm.CACS(m=3, warmup=2, clusters=2),
    "pow-d": fm.PowerOfChoice(m=2, d=4),
    "cpow-d": fm.PowerOfChoice(m=2, d=4, loss="batch"),
    "rpow-d": fm.PowerOfChoice(m=2, d=4, loss="reported"),
    "ActiveFL": fm.ActiveFL(m=3),
    "Oort": fm.Oort(m=3),
    "FixedCohorts": fm.FixedCohorts([[0, 2], [1, 1, 5], [3]]),
}


def test_no_selector_goes_untested():
    assert {type(selector).__name__ for selector in SELECTORS.values()} == set(fm.selectors())


def compare(deployed: Any, case: Case, selector: str, **changes: Any) -> None:
    given = arguments(algorithm=case.make(lr=0.1), selection=SELECTORS[selector], **changes)
    assert_same(deployed(given).run(), fm.run(**given))


@pytest.mark.parametrize("case", EACH, ids=str)
def test_every_algorithm(deployed, case):
    """With a selector that asks for losses, so that x is held before it is needed."""
    compare(deployed, case, "pow-d")


@pytest.mark.parametrize("selector", SELECTORS)
def test_every_selector(deployed, selector):
    compare(deployed, Case("Scaffold", (2, 2)), selector)


@pytest.mark.slow
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("case", EACH, ids=str)
def test_every_algorithm_with_every_selector(deployed, case, selector):
    compare(deployed, case, selector)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "batched"},
        {"local_steps": None, "local_epochs": 2},
        {"batch_size": None},
        {"dtype": torch.float64, "clip": 0.5, "weight_decay": 0.01, "lr_decay": 0.9},
        {"availability": fm.Alternating(groups=2, drop=0.2)},
        {"system": fm.System(over_select=1.5, quorum=0.5)},
        {"model": torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))},
        {"selection": fm.FixedCohorts([[1], [0, 4]]), "engine": "batched"},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_settings(deployed, changes):
    given = arguments(algorithm=fm.FedHBM(lr=0.1)) | changes
    assert_same(deployed(given).run(), fm.run(**given))


def test_clients_with_data_of_their_own(tmp_path):
    """The server learns how many samples they have, and nothing else of them."""
    data, names = federation(), [f"site-{i}" for i in range(CLIENTS)]
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=fm.ACS(m=3))
    deploy = Deploy(clients=names, wait=1.0, rejoin=0.2, poll=0.001)
    config = {name: v for name, v in given.items() if name != "data"} | {"deploy": deploy}
    network = Network(
        lambda: client_app(config, data=lambda name: data.client(names.index(name))), tmp_path / "state", names
    )
    result = serve(network, Deployment.of(config), tmp_path / "run", test=data.test)
    assert_same(result, fm.run(**given))


def test_training_loss_is_asked_for(deployed):
    given = arguments(target={"train_loss": 0.0})
    result, expected = deployed(given, train_metrics=True).run(), fm.run(**given)
    assert [r.train_loss for r in result.history] == pytest.approx([r.train_loss for r in expected.history], rel=1e-6)
    assert_same(result, expected)
    with pytest.raises(ValueError, match="Cannot stop at train_loss because"):
        deployed(given).run()


CONFIG = """
rounds = 3
local_steps = 2
batch_size = 8
engine = "loop"
seed = 2
device = "cpu"
[data]
name = "digits"
clients = 4
partition = {name = "Dirichlet", alpha = 1.0}
[model]
name = "logistic"
features = 64
[algorithm]
name = "FedMoS"
lr = 0.1
[selection]
name = "ACS"
m = 2
[deploy]
clients = ["north", "east", "south", "west"]
wait = 1.0
poll = 0.001
"""


def test_apps_from_a_configuration(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    network = Network(lambda: client_app(path), tmp_path / "state", ["west", "north", 2, "east"])
    run = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"out": str(tmp_path / "run")})
    server_app(path)(network, run)
    settings = load(RunConfig, path)
    expected = fm.run(**settings.arguments(settings.algorithm, settings.selection, settings.seed))
    assert_same(fm.Result.load(tmp_path / "run"), expected)


# ------------------------------------------------------------------------------- what clients may send


@dataclass(frozen=True, kw_only=True)
class Poisoned(fm.FedAvg):
    """The client with importance `who` sends NaN: in a simulation, it is dropped."""

    who: float

    def finish(self, y, s, c, grad):
        return {"delta": torch.where(c.p == self.who, torch.nan, y - c.x)}, {}


BAD = 1
EVERYONE = fm.Full()


@cache
def expected_without_bad(rounds: int = ROUNDS) -> fm.Result:
    data = federation()
    poisoned = Poisoned(lr=0.1, who=float(data.importance[BAD].to(torch.float32)))
    return fm.run(**arguments(algorithm=poisoned, selection=EVERYONE, on_bad_update="drop", rounds=rounds))


def with_array(reply: Message, array: Array) -> Message:
    reply.content["vectors"] = ArrayRecord({"delta": array})
    return reply


def with_numbers(reply: Message, value: float) -> Message:
    a = np.full(D, value, dtype="<f4")
    return with_array(reply, Array(dtype="float32", shape=(D,), stype="fedmos.raw", data=a.tobytes()))


def with_header(reply: Message, **changes: Any) -> Message:
    reply.content["fedmos"] = ConfigRecord(dict(reply.content["fedmos"]) | changes)
    return reply


def npy(header: str) -> bytes:
    """The bytes of a NumPy file with that header and no data."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def without(reply: Message, key: str) -> Message:
    del reply.content[key]
    return reply


D = 5 * 8 + 8 + 8 * 3 + 3

TAMPERED = {
    "NaN": (lambda reply: with_numbers(reply, np.nan), "'delta' is not finite"),
    "infinity": (lambda reply: with_numbers(reply, np.inf), "'delta' is not finite"),
    "too large": (lambda reply: with_numbers(reply, 1e4), "over the bound"),
    "wrong shape": (
        lambda reply: with_array(reply, Array("float32", (D, 1), "fedmos.raw", b"\0" * 4 * D)),
        "must be of shape",
    ),
    "wrong dtype": (
        lambda reply: with_array(reply, Array("float64", (D,), "fedmos.raw", b"\0" * 8 * D)),
        "must be of dtype float32",
    ),
    "too few bytes": (
        lambda reply: with_array(reply, Array("float32", (D,), "fedmos.raw", b"\0" * 4)),
        "must have 300 bytes",
    ),
    "missing field": (lambda reply: without(reply, "vectors"), "its vectors are none"),
    "missing header": (lambda reply: without(reply, "fedmos"), "it has no header"),
    "another field": (
        lambda reply: (reply.content["vectors"].update(more=Array("float32", (0,), "fedmos.raw", b"")), reply)[1],
        "its vectors are delta, more",
    ),
    "another record": (
        lambda reply: (reply.content.update(more=ConfigRecord({"a": 1})), reply)[1],
        "records of unknown names",
    ),
    "object array": (
        lambda reply: with_array(
            reply,
            Array("object", (D,), "numpy.ndarray", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n")),
        ),
        "must be serialised as fedmos.raw",
    ),
    "huge header": (
        lambda reply: with_array(
            reply, Array("float32", (10**15,), "fedmos.raw", npy("{'shape': (1000000000000000,)}" + " " * 60000))
        ),
        "must be of shape",
    ),
    "wrong run": (lambda reply: with_header(reply, run="0" * 32), "its 'run' is"),
    "wrong round": (lambda reply: with_header(reply, round=77), "its 'round' is 77"),
    "another client": (lambda reply: with_header(reply, client=0), "its 'client' is 0"),
    "no samples": (lambda reply: with_header(reply, samples=-3), "its 'samples' is -3"),
    "many samples": (lambda reply: with_header(reply, samples=10**12), "its 'samples' is 1000000000000"),
    "header of another type": (lambda reply: with_header(reply, round=1.5), "'round' in its header must be int"),
    "an app that fails": (lambda reply: Message(Error(2, "no memory"), reply_to=reply), "its app failed: no memory"),
    "to another request": (
        lambda reply: (reply.metadata.__dict__.update(_reply_to_message_id="x"), reply)[1],
        "it names another request as the one that it replies to",
    ),
    "no message": (lambda reply: ValueError("Unexpected set of children"), "cannot be decoded"),
}


@pytest.mark.parametrize("fault", TAMPERED)
def test_a_reply_that_cannot_be_used(deployed, caplog, fault):
    """It is refused and logged with node and reason; the others' replies count as if it had been dropped."""
    change, reason = TAMPERED[fault]
    made = deployed(arguments(selection=EVERYONE, rounds=2), norm_bound=1000.0)

    def tamper(request: Message, reply: Message) -> Any:
        if request.metadata.dst_node_id != 100 + BAD or request.metadata.message_type != wire.TRAIN:
            return reply
        changed = change(reply)
        if isinstance(changed, Message) and changed.has_error():
            return Message(changed.error, reply_to=request)
        return changed

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert torch.equal(result.params, expected_without_bad(2).params)
    refused = [line for line in caplog.messages if line.startswith("Refused the reply of client '1' (node 101)")]
    assert len(refused) == 2
    assert all(reason in line for line in refused)


def test_last_rounds_reply_again(deployed, caplog):
    """From its second round on, a client repeats what it first sent."""
    made, first = deployed(arguments(selection=EVERYONE)), []

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id != 100 + BAD or request.metadata.message_type != wire.TRAIN:
            return reply
        first.append(reply.content)
        return Message(first[0], reply_to=request)

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert not any(record.abandoned for record in result.history)
    said = [line for line in caplog.messages if "Refused" in line]
    assert [f"its 'round' is 0 instead of {t}" in line for t, line in enumerate(said, 1)] == [True] * (ROUNDS - 1)


def test_a_reply_from_another_node(deployed, caplog):
    made = deployed(arguments(selection=EVERYONE))

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id == 100 + BAD and request.metadata.message_type == wire.TRAIN:
            reply.metadata.__dict__["_src_node_id"] = 100
        return reply

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert torch.equal(result.params, expected_without_bad().params)
    assert sum("it comes from node 100" in line for line in caplog.messages) == ROUNDS


def test_a_client_that_never_answers(deployed):
    """It is left out after the deadline, and said to be late; its replies of earlier rounds are never looked at."""
    given = arguments(selection=EVERYONE, system=fm.System(deadline=0.2), rounds=2)
    made = deployed(given)
    made.network.tamper = lambda request, reply: (
        None if request.metadata.dst_node_id == 101 and request.metadata.message_type == wire.TRAIN else reply
    )
    result = made.run()
    assert [record.late for record in result.history] == [[BAD], [BAD]]
    assert torch.equal(result.params, expected_without_bad(2).params)


@pytest.mark.parametrize("selector", ["pow-d", "CACS"])
def test_a_client_that_does_not_answer_the_selector(deployed, selector):
    """It is as if it were not available, and the round goes on with others."""
    given = arguments(selection=SELECTORS[selector], system=fm.System(deadline=0.2), rounds=4)
    made = deployed(given)
    made.network.tamper = lambda request, reply: (
        None
        if request.metadata.dst_node_id == 101 and request.metadata.message_type in (wire.LOSSES, wire.GRADIENTS)
        else reply
    )
    result = made.run()
    away = [record for record in result.history if record.available == CLIENTS - 1]
    assert away
    assert not any(BAD in record.cohort for record in away)
    assert not any(record.abandoned for record in result.history)


@pytest.mark.parametrize("algorithm", [fm.FedAvgM(lr=0.1), fm.Mime(lr=0.1, beta=0.6)], ids=lambda a: type(a).__name__)
def test_below_the_quorum_the_model_stays(deployed, caplog, algorithm):
    """Whether it is the extra phase that too few answer, or the training."""
    given = arguments(algorithm=algorithm, selection=EVERYONE, system=fm.System(quorum=1.0), rounds=3)
    made = deployed(given)
    seen = []

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type.startswith("train") and request.metadata.dst_node_id == 101:
            seen.append(wire.round_of(request.content))
            if seen[-1] == 1:
                return Message(Error(2, "no"), reply_to=request)
        return reply

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert [record.abandoned for record in result.history] == [False, True, False]
    assert result.history[1].test_loss == result.history[0].test_loss
    assert "Round 2 is abandoned because too few of its 6 clients" in caplog.text


def test_overflow_in_the_servers_step_does_not_end_the_run(deployed):
    """Numbers that are finite by themselves, and not in the sum."""
    made = deployed(arguments(selection=EVERYONE, rounds=2))

    def tamper(request: Message, reply: Message) -> Message:
        return with_numbers(reply, 3e38) if request.metadata.message_type == wire.TRAIN else reply

    made.network.tamper = tamper
    given = arguments(selection=EVERYONE, rounds=2, algorithm=fm.FedAvg(lr=0.1, server_lr=100.0))
    made.given |= {"algorithm": given["algorithm"]}
    result = made.run()
    assert [record.abandoned for record in result.history] == [True, True]
    assert torch.equal(result.params, torch.cat([p.detach().flatten() for p in model().parameters()]))


# --------------------------------------------------------------------------- nodes and servers that die


class Killed(BaseException):
    """What nobody catches."""


@pytest.mark.parametrize(
    ("after", "algorithm"),
    [(1, fm.Scaffold(lr=0.1)), (8, fm.FedHBM(lr=0.1)), (12, fm.Scaffold(lr=0.1)), (14, fm.Mime(lr=0.1, beta=0.6))],
    ids=lambda v: type(v).__name__ if isinstance(v, fm.Algorithm) else str(v),
)
def test_a_server_that_is_killed(deployed, after, algorithm):
    """Between any two replies; clients that have done the round's work already do it again, from the state before."""
    given = arguments(algorithm=algorithm, selection=SELECTORS["pow-d"])
    made, expected = deployed(given), fm.run(**given)
    count = 0

    def tamper(request: Message, reply: Message) -> Message:
        nonlocal count
        count += request.metadata.message_type != wire.HELLO
        if count == after:
            count += 1
            raise Killed
        return reply

    made.network.tamper = tamper
    with pytest.raises(Killed):
        made.run()
    assert_same(made.run(), expected)
    assert_same(made.run(), expected)  # finished: read from the folder


def test_a_server_that_is_killed_in_every_round(deployed):
    given = arguments(algorithm=fm.Scaffold(lr=0.1))
    made, killed = deployed(given), set()

    def tamper(request: Message, reply: Message) -> Message:
        t = wire.round_of(request.content)
        if request.metadata.message_type == wire.TRAIN and t not in killed:
            killed.add(t)
            raise Killed
        return reply

    made.network.tamper = tamper
    for _ in range(ROUNDS):
        with pytest.raises(Killed):
            made.run()
    assert_same(made.run(), fm.run(**given))


@pytest.mark.parametrize("trained", [False, True])
def test_a_node_that_is_restarted_mid_round(deployed, monkeypatch, trained):
    """The request that it took with it is sent again, whether or not its work was done."""
    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE)
    made, restarted = deployed(given), set()
    node = made.network.nodes[102]
    answer = node.answer

    def dying(message: Message) -> Message:
        t = wire.round_of(message.content)
        if message.metadata.message_type == wire.TRAIN and t in (1, 3) and t not in restarted:
            restarted.add(t)
            if trained:
                answer(message)
            node.starts += 1
            lost.append(message.metadata.message_id)
        return answer(message)

    lost: list[str] = []
    node.answer = dying
    made.network.tamper = lambda request, reply: None if request.metadata.message_id in lost else reply
    result, expected = made.run(), fm.run(**given)
    assert restarted == {1, 3}
    assert torch.equal(result.params, expected.params)
    assert [r.cohort for r in result.history] == [r.cohort for r in expected.history]
    assert result.history[1].bytes_down > expected.history[1].bytes_down  # what was sent twice is counted twice


def test_a_node_that_is_away_for_a_moment(deployed, monkeypatch):
    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)
    given = arguments(algorithm=fm.FedHBM(lr=0.1, beta=0.6), selection=EVERYONE, rounds=3)
    made = deployed(given, rejoin=30.0)
    node, looks = made.network.nodes[103], 0

    def tamper(request: Message, reply: Message) -> Message:
        nonlocal looks
        if wire.round_of(request.content) == 1 and request.metadata.message_type == wire.TRAIN and not looks:
            looks, node.online = 1, False
        return reply

    listed = made.network.get_nodes

    def get_nodes() -> Any:
        nonlocal looks
        if looks:
            looks += 1
            if looks == 20:
                node.starts, node.online = 2, True
        return listed()

    made.network.tamper, made.network.get_nodes = tamper, get_nodes
    assert torch.equal(made.run().params, fm.run(**given).params)
    assert node.starts == 2


def test_a_client_that_is_gone_is_waited_for_no_longer_than_said(deployed, monkeypatch):
    """And in the rounds after not at all, until it is back."""
    given = arguments(selection=EVERYONE, rounds=6, callbacks=[lambda record: back(record)])
    made = deployed(given, rejoin=2.0, wait=0.1)
    node = made.network.nodes[101]
    node.online = False

    def back(record: Any) -> None:
        node.online = record.round >= 4

    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)
    result = made.run()
    assert [record.late for record in result.history][:4] == [[BAD]] * 4
    assert [record.late for record in result.history][-1] == []
    first, *others = [record.seconds for record in result.history[:4]]
    assert first > 1.0
    assert max(others) < first


def test_state_on_the_clients_disk(deployed):
    """Of each client the state of its last rounds, and nothing older; without it, the client is refused."""
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE)
    made = deployed(given)
    made.run()
    (folder,) = (made.folder / "state" / "2").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [f"state-{t}.safetensors" for t in (1, 2, 3)]
    assert folder.name == json.loads((made.folder / "run" / "deployment.json").read_text())["run"]
    expected = fm.run(**given)
    kept = load_file(folder / "state-3.safetensors")
    assert {name: torch.equal(v, kept[name]) for name, v in expected.client_state(2).items()} == {"c_i": True}


def test_what_a_killed_client_left_half_written(tmp_path):
    folder, own = ClientFolder(tmp_path, "a", "0" * 32), {"v": torch.ones(3)}
    folder.save_state(0, -1, own)
    path = tmp_path / "a" / ("0" * 32)
    old, new = path / ".state-1.safetensors.77.partial", path / ".state-1.safetensors.78.partial"
    for half in (old, new):
        half.write_bytes(b"half")
    os.utime(old, (0, 0))
    folder.save_state(1, 0, own)
    assert not old.exists()
    assert new.exists()  # somebody may be at it
    assert torch.equal(folder.load_state(1, {"v": torch.zeros(3)})["v"], own["v"])


@pytest.mark.parametrize("damage", ["gone", "cut", "bit", "another run's", "another client's"])
def test_damaged_state(deployed, caplog, damage):
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE, rounds=2)
    made = deployed(given)
    made.run()
    (folder,) = (made.folder / "state" / "2").iterdir()
    path = folder / "state-1.safetensors"
    raw = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "bit":
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif damage == "another run's":
        path.write_bytes(raw.replace(folder.name.encode(), b"0" * 32))
    else:
        (other,) = (made.folder / "state" / "3").iterdir()
        path.write_bytes((other / path.name).read_bytes())
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run(rounds=3)
    assert len(result.history) == 3
    said = {"gone": "does not exist", "cut": "cannot be read", "bit": "is damaged"}.get(
        damage, "belongs to another run, client or round"
    )
    assert any("client '2'" in line and said in line for line in caplog.messages)


# -------------------------------------------------------------------------------------- who is who


def test_nodes_are_told_apart_by_what_they_say(deployed):
    """Their numbers and the order in which they come do not matter."""
    made = deployed(arguments(algorithm=fm.Scaffold(lr=0.1)))
    made.network = Network(lambda: client_app(made.given), made.folder / "state", [4, "0", 2, "5", 1, 3])
    assert_same(made.run(), fm.run(**arguments(algorithm=fm.Scaffold(lr=0.1))))


def test_two_nodes_that_claim_to_be_one(deployed, caplog):
    made = deployed()
    made.network = Network(lambda: client_app(made.given), made.folder / "state", [*range(CLIENTS), 3])
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert_same(made.run(), fm.run(**arguments()))
    assert "Node 106 claims to be client '3', which node 103 already serves" in caplog.text


@pytest.mark.parametrize("changes", [{"algorithm": fm.FedAvg(lr=0.2)}, {"seed": 8}, {"local_steps": 4}], ids=repr)
def test_a_client_with_another_configuration(deployed, caplog, changes):
    made = deployed(arguments(rounds=1), wait=0.1)
    odd = Network(lambda: client_app(made.given | changes), made.folder / "state", [0])
    made.network.nodes[100] = odd.nodes[100]
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run()
    assert "Refused node 100: its configuration, model or fedmos version differs" in caplog.text
    assert "Starting without 1 of 6 clients: 0" in caplog.text


def test_a_node_that_is_nobody(deployed, caplog):
    made = deployed(arguments(rounds=1))
    stranger = Network(lambda: client_app(made.given), made.folder / "state", ["stranger"]).nodes[100]
    stranger.number = 200
    made.network.nodes[200] = stranger
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run()
    assert "Refused node 200: its app failed" in caplog.text
    assert "'client' must be one of 0, 1, 2, 3, 4, 5" in caplog.text


def test_mistakes_are_named(deployed, tmp_path):
    with pytest.raises(ValueError, match="Deploy: 'clients' must be a name for each of 6 clients, got 2"):
        deployed(clients=["a", "b"])
    with pytest.raises(ValueError, match="Deploy: 'clients' must be different names"):
        Deploy(clients=["../a", "b"])
    with pytest.raises(ValueError, match="'out' must be a folder"):
        serve(deployed().network, Deployment.of(arguments()))
    fm.run(**arguments(rounds=1), out=tmp_path / "simulated")
    with pytest.raises(ValueError, match="because it is not a deployment; use a new folder"):
        serve(deployed().network, Deployment.of(arguments()), tmp_path / "simulated")


def test_a_deployment_s_defaults_are_the_same_in_a_configuration():
    assert DeployConfig().make() == Deploy()
