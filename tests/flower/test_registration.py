"""Identification of nodes by their client, and refused nodes."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from fedmos.config.tables import DeployConfig
from fedmos.flower import Deploy, client_app
from fedmos.flower.deployment import Deployment
from fedmos.flower.node_identities import fingerprint
from fedmos.flower.server import serve
from helpers.flower_keys import with_keys
from helpers.flower_network import Network
from helpers.flower_runs import CLIENTS, EVERYONE, OwnDeployed, arguments, assert_same, federation


def test_nodes_are_identified_by_their_client(deployed):
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


def test_a_node_with_an_unknown_client_is_refused(deployed, caplog):
    made = deployed(arguments(rounds=1))
    stranger = Network(lambda: client_app(made.given), made.folder / "state", ["stranger"]).nodes[100]
    stranger.number = 200
    made.network.nodes[200] = stranger
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run()
    assert "Refused node 200: its configuration is invalid (code 120)" in caplog.text
    assert "'client' must be one of 0, 1, 2, 3, 4, 5" in caplog.text  # in the client's own log


@pytest.mark.parametrize("learnt", [True, False], ids=["unknown key", "known key"])
def test_a_refused_node_is_asked_again(tmp_path, clock, caplog, learnt):
    """Its data is mended after ten minutes, and it is not restarted; with a known key, the server names it."""
    names = ["a", "b", "c"]
    made = with_keys(OwnDeployed(tmp_path, arguments(rounds=2, selection=EVERYONE), federation(3), names))
    keys = {} if learnt else {"keys": {"b": fingerprint(made.network.nodes[101].key)}}
    made.given["deploy"] = Deploy(clients=names, wait=1.0, poll=0.001, **keys)
    samples, listed = made.samples.pop("b"), made.network.get_nodes

    def get_nodes() -> Any:
        if clock.now > 1600:
            made.samples["b"] = samples
        return listed()

    made.network.get_nodes = get_nodes
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert [r.cohort for r in result.history] == [[0, 1, 2]] * 2
    assert not any(r.late for r in result.history)
    reason = "its data cannot be loaded (code 121); the reason is in the client's own log"
    assert [line for line in caplog.messages if line.startswith("Refused node")] == [f"Refused node 101: {reason}"]
    (waits, *_) = [line for line in caplog.messages if line.startswith("The start waits")]
    assert waits.endswith(": b" if learnt else f": b (refused: {reason})")
    assert clock.now < 1600 + 200


def test_a_node_whose_app_does_not_run(tmp_path, clock, caplog):
    """The log says so, if the node's key is known."""
    names = ["a", "b", "c"]
    made = with_keys(OwnDeployed(tmp_path, arguments(rounds=1, selection=EVERYONE), federation(3), names))
    keys = {"b": fingerprint(made.network.nodes[101].key)}
    made.given["deploy"] = Deploy(clients=names, wait=1.0, poll=0.001, keys=keys)
    answer, runs = made.network.nodes[101].answer, lambda: clock.now > 1600
    made.network.nodes[101].answer = lambda message: answer(message) if runs() else None
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert len(made.run().history) == 1
    (waits, *_) = [line for line in caplog.messages if line.startswith("The start waits")]
    assert waits.endswith(": b (its node is connected, but its app has not answered)")


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
