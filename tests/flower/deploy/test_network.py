"""A network that delays and cuts connections, with real processes: no round is lost, the model is the simulator's."""

from collections.abc import Iterator

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
from fedmos.flower.local.app_template import write_app
from helpers.deploy_methods import assert_same_bits, configuration
from helpers.faulty_deployment import FaultyDeployment, Once
from helpers.faulty_network import Cut, FaultyNetwork

CLIENTS, ROUNDS, PIECE = 2, 3, 2**14
PIECES = 2 * 5
"""Those of an upload: two vectors of 75,256 bytes."""
DATA = {"name": "digits", "clients": CLIENTS, "partition": {"name": "ByClass", "classes": 5, "size": [20, 60]}}


@pytest.fixture
def settings():
    """All clients in every round, and no round without one of them."""
    return configuration(
        "SCAFFOLD",
        rounds=ROUNDS,
        selection={"name": "Full"},
        data=DATA,
        model={"name": "mlp_cifar", "features": 64},
        system={"quorum": 1.0, "deadline": 600.0},
    )


@pytest.fixture
def faulty(tmp_path, monkeypatch) -> Iterator[FaultyDeployment]:
    """A deployment whose second client reaches the server by a faulty network, in pieces of 16 kB instead of 5 MB."""
    monkeypatch.setenv("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", str(PIECE))
    made = FaultyDeployment(tmp_path / "processes", [str(i) for i in range(CLIENTS)])
    with FaultyNetwork(made.address, delay=0.005) as made.networks["node-1"]:
        yield made
        made.__exit__(None, None, None)


@pytest.mark.deploy
def test_connections_are_cut_in_the_middle_of_uploads(faulty, settings, tmp_path):
    """Only the piece that was being sent is sent again, and no request is repeated."""
    network, cuts = faulty.networks["node-1"], [Cut.RESET, Cut.CLOSED, Cut.UNANSWERED, Cut.RESET, Cut.HANDSHAKE]
    app, run = write_app(tmp_path / "app", settings.kept()), tmp_path / "run"
    network.cuts.extend(cuts)
    with faulty:
        outcome = faulty.wait_for(faulty.start_run(app, run), 600)
        assert outcome == "completed", faulty.server_log(60)
    assert network.done == cuts
    assert network.pieces <= ROUNDS * PIECES + 2 * len(cuts)
    assert faulty.processes.log("node-1").read_text("utf-8").count("Receiving: train.work") == ROUNDS
    assert_same_bits(run, settings)


@pytest.mark.deploy
def test_all_connections_are_cut_and_the_next_ones_in_their_handshake(faulty, settings, tmp_path):
    network, cuts = faulty.networks["node-1"], [Cut.HANDSHAKE] * 3
    app, run = write_app(tmp_path / "app", settings.kept()), tmp_path / "run"

    def cut() -> None:
        network.cuts.extend(cuts)
        network.cut_all()

    with faulty:
        outcome = faulty.wait_for(faulty.start_run(app, run), 600, Once(run, 1, cut))
        assert outcome == "completed", faulty.server_log(60)
    assert network.done == cuts
    assert_same_bits(run, settings)
