"""Secure aggregation in deployments: the bits of the simulation, dropouts, restarts, and what the server sees."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Error, Message

from fedmos.aggregation import Secure
from fedmos.engine.secure_sums import SATURATED
from fedmos.flower import manifest, server, wire
from fedmos.flower.channel import OutageError
from fedmos.flower.client_errors import ClientErrorCode
from fedmos.flower.client_folder import ClientFolder
from fedmos.flower.client_runtime import ClientRuntime
from fedmos.flower.decoded_sums import DecodedSums
from fedmos.flower.deployment import Deployment
from fedmos.flower.secure_backend import SecureFlowerBackend
from fedmos.flower.secure_client import SecureClient
from fedmos.flower.secure_rounds import SecureRound
from fedmos.privacy.noise import SeededNoise
from fedmos.secure.client import ClientSession
from helpers.flower_runs import arguments, assert_same
from helpers.private import gaussian
from helpers.secure import forms, holds, memory_of

KINDS = (wire.KEYS, wire.SHARES, wire.MASKED, wire.UNMASK)
SOME_KINDS = [*(pytest.param(kind, marks=pytest.mark.extended) for kind in KINDS[:-1]), wire.UNMASK]
SOON = {"system": fm.System(deadline=0.05)}
"""Who does not answer is late soon: the network makes every reply anew whenever the server looks for it."""
ALGORITHMS = {
    "FedAvg": fm.FedAvg(lr=0.1),
    "Scaffold": fm.Scaffold(lr=0.1),
    "Mime": fm.Mime(lr=0.1, beta=0.5),
    "FedNova": fm.FedNova(lr=0.1),
}


def secure(**changes):
    return arguments(aggregation=Secure(24, bound=1.0), selection=fm.Uniform(m=4), rounds=3) | changes


def many(clients: int) -> fm.FederatedData:
    g = torch.Generator().manual_seed(3)
    pairs = [
        (torch.randn(4 + i % 3, 5, generator=g), torch.randint(3, (4 + i % 3,), generator=g)) for i in range(clients)
    ]
    return fm.FederatedData.from_arrays(pairs, test=pairs[0])


@pytest.mark.parametrize(
    "name", ["Mime", *(pytest.param(name, marks=pytest.mark.extended) for name in ALGORITHMS if name != "Mime")]
)
def test_the_same_bits_as_simulated(deployed, name):
    """Model, server state, records and bytes; with an extra phase in Mime, and single numbers in FedNova."""
    given = secure(algorithm=ALGORITHMS[name])
    got, expected = deployed(given).run(), fm.run(**given)
    assert_same(got, expected)
    assert [r.saturated for r in got.history] == [r.saturated for r in expected.history]


@pytest.mark.extended
def test_saturated_values_are_counted_as_in_the_simulation(deployed):
    given = secure(aggregation=Secure(16, bound=0.003), downlink=fm.codecs.TopK(0.5))
    got, expected = deployed(given).run(), fm.run(**given)
    assert_same(got, expected)
    assert [r.saturated for r in got.history] == [r.saturated for r in expected.history]
    assert all(r.saturated > 0 for r in got.history)


def silent(kind, clients, rounds=(0,)):
    """What makes clients not answer the requests of a kind, in some rounds, nor any later ones of the round."""

    def tamper(request, reply):
        header = request.content["fedmos"]
        if request.metadata.message_type not in KINDS:
            return reply
        late = KINDS.index(request.metadata.message_type) >= KINDS.index(kind)
        return None if late and header["round"] in rounds and header["client"] in clients else reply

    return tamper


@pytest.mark.parametrize(
    ("clients", "gone", "kind"),
    [
        pytest.param(4, [2], wire.MASKED, id="one of 4"),
        *(
            pytest.param(n, gone, kind, id=f"{len(gone)} of {n}, {kind}", marks=pytest.mark.extended)
            for kind in KINDS
            for n, gone in ((4, [2]), (16, [3]), (16, [0, 7, 15]))
        ),
    ],
)
def test_clients_that_leave(deployed, clients, gone, kind):
    """The sum is that of the others; those that leave at last count."""
    given = secure(data=many(clients), selection=fm.Full(), rounds=1, algorithm=fm.Scaffold(lr=0.1))
    made = deployed(given | SOON)
    made.network.tamper = silent(kind, gone)
    got = made.run()
    assert got.history[0].late == gone
    assert not got.history[0].abandoned
    counted = [] if kind == wire.UNMASK else gone
    slow = fm.PerClient([0.001 if i in counted else 1e9 for i in range(clients)])
    expected = fm.run(**given | {"system": fm.System(speed=slow, deadline=60.0)})
    assert expected.history[0].late == counted
    assert torch.equal(got.params, expected.params)
    for name, v in expected.server_state.items():
        assert torch.equal(got.server_state[name], v), name


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_too_few_clients_wait_and_begin_a_new_session(deployed, kind, caplog):
    """Three of four: a single upload is never decoded. When they are back, the bits are those without the outage."""
    given = secure(data=many(4), selection=fm.Full(), rounds=2) | SOON
    made = deployed(given, outage_limit=30.0)
    made.network.tamper = silent(kind, [0, 1, 3])
    with caplog.at_level(logging.WARNING), pytest.raises(OutageError, match="Cannot go on with round 1 because"):
        made.run()
    if kind != wire.KEYS:
        assert "Secure aggregation of a round is abandoned: 1 clients" in caplog.text
        assert "3 are needed" in caplog.text
    made.network.tamper = lambda request, reply: reply
    result = made.run()
    assert not any(r.abandoned for r in result.history)
    assert torch.equal(result.params, fm.run(**given | {"system": None}).params)


@pytest.fixture
def uploads(monkeypatch):
    """The uploads of all clients of a run, in every form in which they could be sent or stored."""
    found = []
    keys, save = SecureClient.keys, ClientFolder.save_upload

    def noted(self, header, declaration, phase, uploads, asked):
        found.extend(v.numpy().tobytes() for v in uploads.values())
        found.extend(v.double().numpy().tobytes() for v in uploads.values())
        return keys(self, header, declaration, phase, uploads, asked)

    def saved(self, t, upload):
        for key, v in upload.items():
            if key != SATURATED:
                found.extend(forms(v.numpy(), 24))
        save(self, t, upload)

    monkeypatch.setattr(SecureClient, "keys", noted)
    monkeypatch.setattr(ClientFolder, "save_upload", saved)
    return found


@pytest.mark.parametrize(
    "gone", [pytest.param([], id="all stay", marks=pytest.mark.extended), pytest.param([2], id="one leaves")]
)
def test_the_server_never_holds_an_unmasked_upload(deployed, uploads, monkeypatch, gone):
    """Every message, and everything that can be reached from the server's objects after each part of a session."""
    made = deployed(secure(data=many(4), selection=fm.Full()) | SOON)
    messages, memory, sums = [], [], []
    leave = silent(wire.MASKED, gone, rounds=(0, 1, 2))
    backends, rounds = [], []
    exchange, total = SecureFlowerBackend._exchange, SecureRound.total

    def inspected(self, kind, requests):
        replies = exchange(self, kind, requests)
        backends.append(self)
        memory.extend(memory_of(self, requests, replies, *rounds, outside=[made.network]))
        return replies

    def summed(self, *given):
        rounds.append(self)
        found = total(self, *given)
        memory.extend(memory_of(self, found, *backends, outside=[made.network]))
        sums.extend(v.numpy().tobytes() for v in found[1].values() if v.numel() > 50)
        return found

    def tapped(request, reply):
        for message in (request, reply):
            messages.extend(a.data for record in message.content.array_records.values() for a in record.values())
        return leave(request, reply)

    monkeypatch.setattr(SecureFlowerBackend, "_exchange", inspected)
    monkeypatch.setattr(SecureRound, "total", summed)
    made.network.tamper = tapped
    assert not made.run().history[-1].abandoned
    assert len(uploads) >= 3 * 4 * 5
    assert len(sums) == 3
    assert len(messages) > 3 * 4 * 6
    assert not holds(messages, uploads)
    assert not holds(memory, uploads)
    assert all(holds(memory, [v]) for v in sums)  # what the server does decode is found


@pytest.mark.extended
def test_the_search_finds_uploads_without_secure_aggregation(deployed):
    """A control of the test above."""
    made, found = deployed(secure(aggregation=None)), []

    def tapped(request, reply):
        found.extend(a.data for record in reply.content.array_records.values() for a in record.values())
        return reply

    made.network.tamper = tapped
    given, uploads = secure(aggregation=None, rounds=1), []

    class Noting(fm.FedAvg):
        def finish(self, y, s, c, grad):
            uploads.append((y - c.x).numpy().tobytes())
            return super().finish(y, s, c, grad)

    fm.run(**given | {"algorithm": Noting(lr=0.1)})
    made.run()
    assert holds(found, uploads)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_server_that_is_killed_repeats_the_round_with_new_keys(deployed, kind):
    given = secure(algorithm=fm.Scaffold(lr=0.1))
    made, sessions, masked = deployed(given), {}, []

    class Killed(BaseException):
        pass

    def tamper(request, reply):
        header = request.content["fedmos"]
        if "session" in header:
            sessions.setdefault(header["round"], set()).add(header["session"])
        if request.metadata.message_type == wire.MASKED:
            masked.extend(a.data for a in reply.content["vectors"].values() if len(a.data) > 100)
        if request.metadata.message_type == kind and header["round"] == 1 and len(sessions[1]) == 1:
            raise Killed
        return reply

    made.network.tamper = tamper
    with pytest.raises(Killed):
        made.run()
    assert_same(made.run(), fm.run(**given))
    assert [len(v) for v in sessions.values()] == [1, 2, 1]
    assert len(set(masked)) == len(masked)


@pytest.mark.parametrize(
    ("algorithm", "selection"),
    [
        (fm.FedAvg(lr=0.1), fm.UCB(m=4)),
        pytest.param(fm.Mime(lr=0.1, beta=0.5), fm.Uniform(m=4), marks=pytest.mark.extended),
    ],
    ids=["reports", "Mime"],
)
def test_a_killed_server_decodes_no_second_sum_of_a_round(deployed, monkeypatch, algorithm, selection):
    """A sum over other clients would tell their uploads: the stored one is used, whoever would answer then."""
    given = secure(algorithm=algorithm, selection=selection, downlink=fm.codecs.TopK(0.5))
    made, add, masked = deployed(given | SOON), DecodedSums.add, []

    class Killed(BaseException):
        pass

    def added(self, t, phase, found):
        add(self, t, phase, found)
        if (t, phase) == (1, "train"):
            monkeypatch.setattr(DecodedSums, "add", add)
            raise Killed

    def tamper(request, reply):
        masked.extend([request.content["fedmos"]["round"]] * (request.metadata.message_type == wire.MASKED))
        return reply

    monkeypatch.setattr(DecodedSums, "add", added)
    made.network.tamper = tamper
    with pytest.raises(Killed):
        made.run()
    before = masked.count(1)
    absent = silent(wire.KEYS, [0, 1, 2], rounds=(1,))
    made.network.tamper = lambda request, reply: tamper(request, absent(request, reply))
    got, expected = made.run(), fm.run(**given)
    assert masked.count(1) == before > 0
    assert [(r.cohort, r.late, r.abandoned) for r in got.history] == [(r.cohort, [], False) for r in expected.history]
    assert torch.equal(got.params, expected.params)


def client_of(made, name: str = "0") -> ClientRuntime:
    return ClientRuntime(Deployment.of(made.given), name, str(made.folder / "state"), None)


def test_a_client_sends_vectors_by_secure_aggregation_only(deployed):
    made = deployed(secure())
    made.run()
    runtime, header = client_of(made), {"run": "0" * 32, "round": 0, "client": 0}
    for kind in (wire.TRAIN, wire.PREPARE, wire.REPORT, wire.UPLOAD, wire.GRADIENTS):
        more = {name: kind_() for name, kind_ in wire._DOWN[kind].items()}
        with pytest.raises(wire.RefusedError, match="this client sends vectors by secure aggregation only"):
            runtime.handle(kind, wire.compose(header | more))
    plain = deployed(secure(aggregation=None))
    with pytest.raises(wire.RefusedError, match="configuration has no secure aggregation"):
        client_of(plain).handle(wire.UNMASK, wire.compose(header | {"session": "0" * 32, "members": "0"}))


def test_a_client_answers_each_request_of_a_session_once(deployed):
    """A request that is sent again gets the same reply; one that differs would reveal more, and is refused."""
    made = deployed(secure(data=many(4), selection=fm.Full(), rounds=1))
    answers = {}

    def tamper(request, reply):
        if request.metadata.message_type in KINDS and request.content["fedmos"]["client"] == 0:
            node = made.network.nodes[100]
            again = node.answer(request)
            assert not again.has_error()
            first, second = ({n: a.data for n, a in m.content["vectors"].items()} for m in (reply, again))
            assert first == second, request.metadata.message_type
            answers[request.metadata.message_type] = request
            header = dict(request.content["fedmos"])
            if "members" in header:
                request.content["fedmos"]["members"] = ",".join(header["members"].split(",")[:3])
                other = node.answer(request)
                request.content["fedmos"]["members"] = header["members"]
                assert other.has_error()
                assert other.error.code == ClientErrorCode.INVALID_REQUEST
        return reply

    made.network.tamper = tamper
    result = made.run()
    assert set(answers) == set(KINDS)
    assert not result.history[0].abandoned
    session = next((made.folder / "state" / "0").glob("*/secure/*"))
    assert sorted(p.name for p in session.iterdir()) == ["answer", "members", "request", "sharing", "uploaded"]
    assert all(p.stat().st_mode & 0o077 == 0 for p in session.iterdir())
    for kind, sentence in ((wire.MASKED, "no such session, or not come so far"), (wire.KEYS, "its session has ended")):
        with pytest.raises(wire.RefusedError, match=sentence):
            client_of(made).handle(kind, answers[kind].content)


@pytest.mark.parametrize("field", ["factors", "steps"])
def test_masks_hide_one_upload_only(deployed, field):
    """Other factors or steps make other integers of an upload, and their difference under the same masks shows both."""
    made = deployed(secure(data=many(4), selection=fm.Full(), rounds=1))
    keys, codes = {}, []

    def tamper(request, reply):
        header = request.content["fedmos"]
        if header["client"] == 0 and request.metadata.message_type == wire.KEYS:
            keys[0] = request
        if header["client"] == 0 and request.metadata.message_type == wire.MASKED:
            node, asked = made.network.nodes[100], keys[0].content["fedmos"]
            before = list(asked[field])
            asked[field] = [2 * v for v in before]
            codes.append(node.answer(keys[0]).error.code)
            asked[field] = before
            again = node.answer(request)
            assert again.content["vectors"]["w delta"].data == reply.content["vectors"]["w delta"].data
        return reply

    made.network.tamper = tamper
    assert not made.run().history[0].abandoned
    assert codes == [ClientErrorCode.INVALID_REQUEST]


@pytest.mark.extended
def test_wrong_shares_abandon_the_round(deployed, monkeypatch, caplog):
    unmask = ClientSession.unmask

    def wrong(self, *given):
        shares = unmask(self, *given)
        return bytes(len(shares)) if "/0/" in self.context else shares

    monkeypatch.setattr(ClientSession, "unmask", wrong)
    made = deployed(secure(rounds=2))
    with caplog.at_level(logging.WARNING):
        assert [record.abandoned for record in made.run().history] == [True, False]
    assert "Cannot unmask the sum because shares of client" in caplog.text


@pytest.mark.parametrize(
    "algorithm",
    [fm.FedAvg(lr=0.1), pytest.param(fm.Mime(lr=0.1, beta=0.6), marks=pytest.mark.extended)],
    ids=["FedAvg", "Mime"],
)
def test_private_runs_give_the_bits_of_the_simulation_with_its_noise(deployed, monkeypatch, algorithm):
    monkeypatch.setattr(server, "SystemNoise", SeededNoise)
    monkeypatch.setattr(manifest.DeploymentManifest, "cohort_seed", lambda self, t: 7)
    given = secure(algorithm=algorithm, privacy=gaussian(0.05, 1.0), aggregation=Secure(24))
    got, expected = deployed(given).run(), fm.run(**given)
    assert_same(got, expected)
    assert [r.epsilon for r in got.history] == [r.epsilon for r in expected.history]
    assert all(r.saturated is None for r in got.history)


@pytest.mark.extended
def test_private_runs_stop_where_a_sum_cannot_be_decoded(deployed):
    """They go on, with all clients, when they are started again."""
    made = deployed(secure(data=many(4), selection=fm.Full(), privacy=gaussian(0.05, 1.0), aggregation=Secure()) | SOON)
    lost = silent(wire.MASKED, [0, 1], rounds=(1,))
    made.network.tamper = lambda request, reply: lost(request, reply) or Message(Error(2, "no"), reply_to=request)
    with pytest.raises(RuntimeError, match=r"Cannot sum the uploads of round 2 because too few clients stayed in it"):
        made.run()
    made.network.tamper = lambda request, reply: reply
    assert len(made.run().history) == 3


def test_a_norm_bound_of_the_server_is_refused(deployed):
    with pytest.raises(ValueError, match="Cannot use norm_bound with secure aggregation"):
        deployed(secure(), norm_bound=3.0)


@pytest.mark.extended
def test_clients_that_only_they_have_data(deployed):
    """The server knows sizes only."""
    data = many(4)
    given = secure(data=data, selection=fm.Full(), rounds=2)
    expected = fm.run(**given)
    made = deployed(given | {"data": replace(data, names=("a", "b", "c", "d"))})
    assert torch.equal(made.run().params, expected.params)
