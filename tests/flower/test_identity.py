"""Names are bound to keys, and claimed numbers of samples are agreed and bounded."""

from __future__ import annotations

import json
import logging
import re
import subprocess
from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedmos.flower import Deploy, client_app, reply_collector, wire
from fedmos.flower.deployment import Deployment
from fedmos.flower.input_columns import InputColumns
from fedmos.flower.node_identities import fingerprint
from fedmos.flower.server import serve
from helpers.flower_keys import new_key, outsider, with_keys
from helpers.flower_network import Network
from helpers.flower_runs import CLIENTS, EVERYONE, arguments, assert_same, federation


@pytest.mark.parametrize("learnt", [True, False], ids=["learnt", "configured"])
def test_an_impostor_does_not_take_the_place_of_a_client_that_restarts(deployed, monkeypatch, caplog, learnt):
    monkeypatch.setattr(reply_collector, "_REFRESH_INTERVAL", 0.0)
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=EVERYONE, rounds=4)
    made = with_keys(deployed(given, rejoin=30.0))
    if not learnt:
        keys = {str(i): fingerprint(made.network.nodes[100 + i].key) for i in range(CLIENTS)}
        made.given["deploy"] = Deploy(wait=1.0, rejoin=30.0, poll=0.001, keys=keys)
    node, looks = made.network.nodes[103], 0

    def tamper(request: Any, reply: Any) -> Any:
        nonlocal looks
        if wire.round_of(request.content) == 1 and request.metadata.message_type == wire.TRAIN and not looks:
            looks, node.online = 1, False
            outsider(made, 3)
        return reply

    listed = made.network.get_nodes

    def get_nodes() -> Any:
        nonlocal looks
        looks += bool(looks)
        if looks == 20:
            node.starts, node.online = 2, True  # the same key
        return listed()

    made.network.tamper, made.network.get_nodes = tamper, get_nodes
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert torch.equal(result.params, fm.run(**given).params)
    refused = [line for line in caplog.messages if line.startswith("Refused node 200")]
    mine, its = fingerprint(made.network.nodes[200].key), fingerprint(node.key)
    assert refused == [
        f"Refused node 200: it claims to be client '3', but its key {mine} is not that client's key {its}; if the key "
        "was replaced, name the new one in [deploy] keys"
    ]
    assert not (made.folder / "outsider").exists() or not list((made.folder / "outsider").rglob("*.safetensors"))


def test_bound_keys_outlive_the_server(deployed, caplog):
    """They are in the run folder; an outsider that comes first after a restart of the server is refused."""
    made = with_keys(deployed(arguments(rounds=1), wait=0.1))
    made.run()
    path = made.folder / "run" / "identities.json"
    assert json.loads(path.read_text()) == {
        str(i): fingerprint(made.network.nodes[100 + i].key) for i in range(CLIENTS)
    }
    made.network.nodes[103].online = False
    outsider(made, 3)
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run(rounds=2)
    assert "Refused node 200: it claims to be client '3', but its key SHA256:" in caplog.text
    path.write_text("{")
    with pytest.raises(ValueError, match=r"identities\.json is damaged; name the keys of the clients in"):
        made.run(rounds=3)


def test_a_client_cannot_be_two(deployed, caplog):
    made = with_keys(deployed(arguments(rounds=1), wait=0.1))
    made.network.nodes[103].online = False
    outsider(made, 3).key = made.network.nodes[101].key
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run()
    assert re.search("Refused node 200: it claims to be client '3', but its key .* is that of client '1'", caplog.text)


def test_a_replaced_key_is_named_in_the_configuration(deployed):
    made = with_keys(deployed(arguments(rounds=1), wait=0.1))
    made.run()
    node = made.network.nodes[103]
    node.key, node.starts = new_key(), 2
    result = made.run(rounds=2, deploy=Deploy(wait=0.1, poll=0.001, keys={"3": fingerprint(node.key)}))
    assert len(result.history) == 2
    assert json.loads((made.folder / "run" / "identities.json").read_text())["3"] == fingerprint(node.key)


def test_without_keys_a_named_client_is_refused(deployed, caplog):
    made = deployed(arguments(rounds=1), wait=0.1, keys={"3": "SHA256:" + "A" * 43})
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run()
    assert "Refused node 103: it claims to be client '3', but its key none is not that client's key" in caplog.text


def test_fingerprints_are_those_of_ssh(tmp_path):
    ssh = ec.generate_private_key(ec.SECP384R1()).public_key()
    path = tmp_path / "key.pub"
    path.write_bytes(ssh.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    found = fingerprint(path.read_bytes())
    assert found == fingerprint(ssh.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    try:
        printed = subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    assert printed.split()[1] == found
    with pytest.raises(wire.RefusedError, match="its public key cannot be read"):
        fingerprint(b"no key")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": {"0": "abc"}}, "'keys' must be fingerprints SHA256:… by client or one of 'learn', 'off'"),
        ({"samples": {"0": 0}}, "'samples' must be integers ≥ 1 by client"),
        ({"clients": ["a"], "samples": {"b": 3}}, "'samples' must be a table of 'clients', got b"),
        ({"clients": ["a/b"]}, "'clients' must be different names of letters"),
        ({"clients": ["../a"]}, "'clients' must be different names of letters"),
        ({"clients": ["a\\b"]}, "'clients' must be different names of letters"),
        ({"clients": [".."]}, "'clients' must be different names of letters"),
        ({"clients": ["Site", "site"]}, "'clients' must be different names of letters"),
    ],
)
def test_invalid_tables_and_names(changes, message):
    with pytest.raises(ValueError, match=re.escape(f"Deploy: {message}")):
        Deploy(**changes)


def test_names_with_dots_have_folders_of_their_own(tmp_path, clock):
    given = arguments(rounds=1, data=federation(2), selection=EVERYONE)
    given["deploy"] = Deploy(clients=["site.1", "site.2"], wait=0.1, poll=0.001)
    network = Network(lambda: client_app(given), tmp_path / "state", ["site.1", "site.2"])
    serve(network, Deployment.of(given), tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["site.1", "site.2"]


HOUR = 3600.0


class OwnData:
    """A deployment whose server sees no samples."""

    def __init__(self, folder: Any, sizes: list[int], **deploy: Any) -> None:
        self.folder, self.sizes = folder, dict(zip("abc", sizes, strict=True))
        given = {name: v for name, v in arguments(selection=EVERYONE, rounds=2).items() if name != "data"}
        self.given = given | {"deploy": Deploy(clients=["a", "b", "c"], wait=0.1, rejoin=0.2, poll=0.001, **deploy)}
        self.network = Network(lambda: client_app(self.given, data=self.load), folder / "state", "abc")
        self.claims: dict[str, int] = {}
        self.network.tamper = self.claim
        self.widths: list[int] = []

    def load(self, name: str) -> Any:
        g = torch.Generator().manual_seed(ord(name))
        n = self.sizes[name]
        return torch.randn(n, 5, generator=g), torch.randint(3, (n,), generator=g)

    def claim(self, request: Any, reply: Any) -> Any:
        """Let a client claim another number of samples in all its replies."""
        header = None if reply.has_error() else reply.content["fedmos"]
        if "width" in request.content["fedmos"]:
            self.widths.append(request.content["fedmos"]["width"])
        if header is not None and (name := "abc"[header["client"]]) in self.claims:
            header["samples"] = self.claims[name]
        return reply

    def run(self, **changes: Any) -> fm.Result:
        g = torch.Generator().manual_seed(1)
        test = (torch.randn(20, 5, generator=g), torch.randint(3, (20,), generator=g))
        return serve(self.network, Deployment.of(self.given | changes), self.folder / "run", test)


@pytest.mark.parametrize("claimed", [2**40, 5 * 10**7])
def test_a_large_claim_is_refused(tmp_path, clock, caplog, claimed):
    """Before anything depends on it: no memory, no weight, no wider work for the others."""
    made = OwnData(tmp_path, [20, 30, 25], outage_limit=HOUR)
    made.claims["c"] = claimed
    with caplog.at_level(logging.WARNING, "fedmos"), pytest.raises((ValueError, RuntimeError, TimeoutError)):
        made.run()
    assert (
        f"Refused node 102: client 'c' claims {claimed} samples, more than [deploy] max_samples = 10000000; if that is "
        f"right, agree to it: samples = {{ c = {claimed} }}"
    ) in caplog.messages
    assert made.widths == []


def test_a_claim_out_of_proportion_needs_agreement(tmp_path, clock):
    made = OwnData(tmp_path, [20, 30, 25])
    made.claims["c"] = 3001
    with pytest.raises(ValueError, match=re.escape("client 'c' claims 3001 samples, more than 100 times the median")):
        made.run()
    agreed = Deploy(clients=["a", "b", "c"], wait=0.1, rejoin=0.2, poll=0.001, samples={"c": 3001})
    result = made.run(deploy=agreed)
    assert len(result.history) == 2


def test_a_number_that_is_not_the_agreed_one(tmp_path, clock, caplog):
    made = OwnData(tmp_path, [20, 30, 25], samples={"a": 20, "b": 31, "c": 25}, outage_limit=HOUR)
    with caplog.at_level(logging.WARNING, "fedmos"), pytest.raises((ValueError, RuntimeError, TimeoutError)):
        made.run()
    line = "client 'b' has 30 samples, and 31 are agreed in [deploy] samples; it is left out until both are equal"
    assert f"Refused node 101: {line}" in caplog.messages


@pytest.mark.parametrize("during", [False, True], ids=["between rounds", "between two messages"])
def test_a_client_whose_data_grew(tmp_path, clock, caplog, during):
    """It is left out, and the log says why: when it connects, or with each reply of a node that stays connected."""
    made = OwnData(tmp_path, [20, 30, 25])
    made.run()
    made.sizes["b"] = 33
    if during:
        hello = made.network.tamper

        def tamper(request: Any, reply: Any) -> Any:
            reply = hello(request, reply)
            if request.metadata.message_type == wire.HELLO and reply.content["fedmos"]["client"] == 1:
                reply.content["fedmos"]["samples"] = 30
            return reply

        made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run(rounds=4)
    assert len(result.history) == 4
    reason = (
        "client 'b' has 33 samples now instead of 30, the number in this run: its data has changed; it is left out "
        "until the operator accepts the new number (fedmos deploy samples b 33)"
    )
    said = [line for line in caplog.messages if reason in line and line.startswith("Refused")]
    assert said == (
        [f"Refused the reply of client 'b' (node 101) in round {t}: {reason}" for t in (3, 4)]
        if during
        else [f"Refused node 101: {reason}"]
    )


def test_columns_of_clients_are_compared():
    """With each other, if the server has no table; a client that names its inputs itself is not compared."""
    columns = InputColumns()
    columns.check("a", "1")
    columns.check("b", "1")
    columns.check("c", "")
    with pytest.raises(wire.RefusedError, match="the columns of client 'd' are not those of client 'a'"):
        columns.check("d", "2")
    columns.check("d", "1")
    with pytest.raises(wire.RefusedError, match="are not those of the server's test samples"):
        InputColumns("2").check("a", "1")
    alone = InputColumns()
    alone.check("a", "1")
    alone.check("a", "2")  # its table has changed, and nobody else has one


def test_bits_are_those_of_the_simulation(deployed):
    """Keys and bounds change nothing in an honest run."""
    made = with_keys(deployed(arguments(rounds=2)))
    assert_same(made.run(), fm.run(**arguments(rounds=2)))
