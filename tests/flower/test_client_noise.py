"""Private deployments whose clients add the noise: local differential privacy, and discrete noise under secure sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Message

from fedmos.flower import client_runtime, wire
from fedmos.flower.client_guard import most_rounds
from fedmos.flower.client_runtime import ClientRuntime
from fedmos.flower.deployment import Deployment
from fedmos.flower.secret_noise import secret_normal, secret_words
from fedmos.privacy.client_noise import SeededClientNoise
from fedmos.privacy.discrete import discrete_gaussian
from helpers.flower_runs import CLIENTS, EVERYONE, Deployed, arguments, assert_same

MORE = pytest.mark.extended
RUN = "0" * 32


class Killed(BaseException):
    """What nobody catches."""


@pytest.fixture
def seeded(monkeypatch):
    """Noise from the run's seed, as in a simulation."""
    monkeypatch.setattr(client_runtime, "SecretClientNoise", lambda secret: SeededClientNoise())


def local(**changes: Any) -> dict[str, Any]:
    privacy = fm.privacy.Local(clip=0.05, noise_multiplier=2.0, delta=1e-3)
    return arguments(**{"privacy": privacy, "selection": fm.Cyclic(m=3)} | changes)


def discrete(**changes: Any) -> dict[str, Any]:
    given = {
        "privacy": fm.privacy.DiscreteGaussian(clip=0.05, noise_multiplier=2.0, delta=1e-3),
        "aggregation": fm.aggregation.Secure(),
        "selection": EVERYONE,
    }
    return arguments(**given | changes)


CASES = {
    "local": local(algorithm=fm.Scaffold(lr=0.1)),
    "local, coded": local(
        algorithm=fm.FedHBM(lr=0.1, beta=0.6), uplink=fm.codecs.ErrorFeedback(fm.codecs.Quantize(4)), selection=EVERYONE
    ),
    "local, extra phase, batched": local(algorithm=fm.Mime(lr=0.1), engine="batched", local=fm.local.SGD(momentum=0.5)),
    "discrete": discrete(algorithm=fm.Scaffold(lr=0.1)),
    "discrete, extra phase, downlink": discrete(algorithm=fm.Mime(lr=0.1), downlink=fm.codecs.Quantize(8)),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MORE if "batched" in name else ()) for name in CASES])
def test_the_simulation_with_its_noise(deployed, seeded, name):
    given = CASES[name]
    result, expected = deployed(given).run(), fm.run(**given)
    assert_same(result, expected, exact="batched" not in name)
    assert [r.epsilon for r in result.history] == [r.epsilon for r in expected.history]


@pytest.mark.parametrize("given", [local(rounds=2), discrete(rounds=2)], ids=["local", "discrete"])
def test_noise_does_not_follow_from_the_seed(tmp_path, clock, given):
    one, other = (Deployed(tmp_path / name, given).run() for name in ("one", "other"))
    simulated = fm.run(**given)
    for a, b in ((one, other), (one, simulated), (other, simulated)):
        assert not torch.equal(a.params, b.params)
        assert [r.cohort for r in a.history] == [r.cohort for r in b.history]
        assert [r.epsilon for r in a.history] == [r.epsilon for r in b.history]


def uploads(made: Deployed) -> dict[int, torch.Tensor]:
    """Run one round; returns what each client sends."""
    found = {}

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == wire.TRAIN:
            array = reply.content["vectors"]["delta"]
            found[request.metadata.dst_node_id - 100] = torch.frombuffer(bytearray(array.data), dtype=torch.float32)
        return reply

    made.network.tamper = tamper
    made.run()
    return found


def test_what_a_client_sends_has_the_noise_of_the_mechanism(tmp_path, clock):
    def sent(name: str, z: float) -> dict[int, torch.Tensor]:
        privacy = fm.privacy.Local(clip=0.05, noise_multiplier=z, delta=1e-3)
        return uploads(Deployed(tmp_path / name, local(rounds=1, selection=EVERYONE, privacy=privacy)))

    clipped, noisy = sent("clipped", 0.0), sent("noisy", 2.0)
    noise = torch.stack([noisy[i] - clipped[i] for i in range(CLIENTS)])
    assert noise.numel() == CLIENTS * 75
    assert float(noise.std()) == pytest.approx(0.1, rel=0.1)
    assert abs(float(noise.mean())) < 0.02
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.5


def test_secret_numbers():
    normal, words = secret_normal(2**20 + 3, b"seed"), secret_words(2**20 + 3, b"seed")
    assert len(normal) == len(words) == 2**20 + 3
    assert abs(float(normal.mean())) < 0.01
    assert abs(float(normal.std()) - 1) < 0.01
    integers = discrete_gaussian(words, 3.0).double()
    assert abs(float(integers.mean())) < 0.02
    assert abs(float(integers.std()) - 3) < 0.03
    assert torch.equal(secret_words(5, b"seed"), words[:5])
    assert not torch.equal(secret_words(5, b"other"), words[:5])


def job(i: int, t: int, **changes: Any) -> dict[str, Any]:
    given = {"lr": 0.1, "N": CLIENTS, "S": 3, "W": 1.0, "p": 0.1, "last": -1, "width": 0, "reports": "", "keep": False}
    given |= {"stored": "", "restart": ""}
    return {"run": RUN, "round": t, "client": i} | given | changes


def asked(given: dict[str, Any], header: dict[str, Any]) -> Any:
    x = torch.cat([v.detach().flatten() for v in given["model"].parameters()])
    return wire.compose(header, wire.pack({"x": x}))


def test_a_repeated_request_gets_the_same_noise_and_another_none(tmp_path):
    """Else the server could average the noise away, or take the difference of two uploads with the same noise."""
    given = local()
    client = ClientRuntime(Deployment.of(given), "0", str(tmp_path), None)
    first, second = (client.handle(wire.TRAIN, asked(given, job(0, 0)))["vectors"]["delta"].data for _ in range(2))
    assert first == second
    again = ClientRuntime(Deployment.of(given), "0", str(tmp_path), None)
    assert again.handle(wire.TRAIN, asked(given, job(0, 0)))["vectors"]["delta"].data == first
    for changes in ({"S": 2}, {"W": 2.0}, {"p": 0.2}, {"N": 7}, {"lr": 0.2}):
        with pytest.raises(wire.RefusedError, match="has answered a different request for 'train' in round 1"):
            client.handle(wire.TRAIN, asked(given, job(0, 0, **changes)))


def test_a_client_counts_the_rounds_that_epsilon_is_computed_for(tmp_path):
    given = local(rounds=4)
    assert most_rounds(Deployment.of(given).spec) == 2
    client = ClientRuntime(Deployment.of(given), "0", str(tmp_path), None)
    for t in (0, 2, 2):
        client.handle(wire.TRAIN, asked(given, job(0, t)))
    with pytest.raises(wire.RefusedError, match="has taken part in 2 rounds of this run, as many as its ε is computed"):
        client.handle(wire.TRAIN, asked(given, job(0, 3)))
    assert most_rounds(Deployment.of(local(rounds=4, selection=fm.Uniform(m=3))).spec) == 4
    budget = fm.privacy.Local(clip=0.05, noise_multiplier=2.0, delta=1e-3, budget=5.0)
    affordable = len(fm.run(**local(privacy=budget, selection=EVERYONE)).history)
    assert most_rounds(Deployment.of(local(privacy=budget, selection=EVERYONE)).spec) == affordable < 4


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        (wire.LOSSES, {"batch": False, "keep": False}),
        (wire.GRADIENTS, {"keep": False}),
        (wire.EVALUATE, {}),
        (wire.UPLOAD, {"reports": ""}),
        (wire.TRAIN, {"reports": "loss"}),
    ],
    ids=str,
)
def test_a_client_answers_nothing_without_noise(tmp_path, kind, header):
    client = ClientRuntime(Deployment.of(local()), "0", str(tmp_path), None)
    given = job(0, 0) if kind == wire.TRAIN else {"run": RUN, "round": 0, "client": 0}
    with pytest.raises(wire.RefusedError, match="this client's configuration has privacy: it sends clipped uploads"):
        client.handle(kind, wire.compose(given | header))


def test_a_client_uploads_noise_to_secure_sums_only(tmp_path):
    given = discrete()
    client = ClientRuntime(Deployment.of(given), "0", str(tmp_path), None)
    with pytest.raises(wire.RefusedError, match="this client sends vectors by secure aggregation only"):
        client.handle(wire.TRAIN, asked(given, job(0, 0)))
    session = {"phase": "train", "session": "1" * 32}
    right = {"steps": [2.0**-20], "factors": [1.0]}
    for changes in ({"factors": [0.5]}, {"steps": [1.0]}):
        with pytest.raises(wire.RefusedError, match="all clients have the factor 1 and the units of the noise"):
            client.handle(wire.KEYS, asked(given, job(0, 0) | session | right | changes))


def test_a_sum_is_decoded_once(deployed):
    """A server that is killed after it has decoded a sum uses it again, also if a client is missing then."""
    killed: list[int] = []

    def kill(record: fm.Record) -> None:
        if record.round == 2 and not killed:
            killed.append(1)
            raise Killed

    given = discrete(algorithm=fm.Scaffold(lr=0.1), rounds=3, downlink=fm.codecs.Quantize(8))
    made = deployed(given | {"callbacks": [kill]})
    with pytest.raises(Killed):
        made.run()
    stored = {path.name: path.read_bytes() for path in (made.folder / "run" / "releases").iterdir()}
    asked_before = sum(message.metadata.message_type == wire.KEYS for message in made.network.sent)
    made.network.nodes[102].online = False
    result = made.run()
    after = [message for message in made.network.sent if message.metadata.message_type == wire.KEYS][asked_before:]
    assert {wire.round_of(message.content) for message in after} == {2}
    assert result.history[1].cohort == list(range(CLIENTS))
    assert all((made.folder / "run" / "releases" / name).read_bytes() == content for name, content in stored.items())
    assert not any(record.abandoned for record in result.history)


@pytest.mark.parametrize("attack", ["few", "again"])
def test_a_client_does_not_unmask_sums_that_tell_more(deployed, caplog, attack):
    """A sum over fewer clients than the noise is made for, or a second sum in a round."""
    made = deployed(discrete(rounds=1))
    unmasked: list[Message] = []

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == wire.UNMASK:
            unmasked.append(request)
        return reply

    made.network.tamper = tamper
    made.run()
    request = unmasked[0]
    header = dict(request.content["fedmos"])
    client = ClientRuntime(Deployment.of(made.given), str(header["client"]), str(made.folder / "state"), None)
    assert client.handle(wire.UNMASK, request.content)["vectors"]  # the same request is answered again
    folder = made.client_folder(str(header["client"])) / "secure" / header["session"]
    (folder / "answer").unlink()
    if attack == "few":
        (folder / "uploaded").unlink()
        header["members"] = "0,1,2"
        sentence = "the sum is over 3 clients, and the noise is that of 4 at least"
    else:
        other = folder.with_name("2" * 32)
        folder.rename(other)
        (other / "secrets").write_text('{"phase": "train"}')
        header["session"] = other.name
        sentence = "has answered a different request for 'sum.train' in round 1"
    if attack == "few":
        (folder / "secrets").write_text('{"phase": "train"}')
    with pytest.raises(wire.RefusedError, match=sentence):
        client.handle(wire.UNMASK, wire.compose(header))


def test_too_few_clients(deployed):
    """The round is abandoned, and nothing is revealed."""
    made = deployed(discrete(rounds=2))

    def tamper(request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type == wire.MASKED and wire.round_of(request.content) == 0:
            from flwr.app import Error

            return Message(Error(2, "no"), reply_to=request) if request.metadata.dst_node_id > 102 else reply
        return reply

    made.network.tamper = tamper
    result = made.run()
    assert [record.abandoned for record in result.history] == [True, False]
