"""Faults of the SuperLink, of clocks and of clients' apps, with real processes: the model is the simulator's."""

from collections.abc import Iterator

import pytest

import fedmos as fm

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
from fedmos.flower.local.app_template import write_app
from fedmos.flower.local.process_group import wait_until
from helpers.deploy_methods import assert_same_bits, configuration
from helpers.faulty_deployment import FaultyDeployment, Once

CLIENTS, ROUNDS = 2, 5
DATA = {"name": "digits", "clients": CLIENTS, "partition": {"name": "ByClass", "classes": 5, "size": [20, 60]}}


@pytest.fixture
def settings():
    """All clients in every round, and no round without one of them."""
    return configuration(
        "SCAFFOLD", rounds=ROUNDS, selection={"name": "Full"}, data=DATA, system={"quorum": 1.0, "deadline": 60.0}
    )


@pytest.fixture
def faulty(tmp_path) -> Iterator[FaultyDeployment]:
    made = FaultyDeployment(tmp_path / "processes", [str(i) for i in range(CLIENTS)])
    yield made
    made.__exit__(None, None, None)


@pytest.mark.deploy
def test_a_superlink_with_a_database_is_killed(faulty, settings, tmp_path):
    """The run goes on in the round in which it was."""
    faulty.database = tmp_path / "superlink.db"
    app, run = write_app(tmp_path / "app", settings.kept()), tmp_path / "run"
    with faulty:
        harm = Once(run, 2, lambda: faulty.kill_superlink(5))
        outcome = faulty.wait_for(faulty.start_run(app, run), 1200, harm)
        assert harm.done
        assert outcome == "completed", faulty.server_log(60)
    assert_same_bits(run, settings)


@pytest.mark.slow
def test_a_superlink_without_a_database_is_killed(faulty, settings, tmp_path):
    """The run stops with an error that says what to do, and a new start continues it after the last round."""
    app, run = write_app(tmp_path / "app", settings.kept()), tmp_path / "run"
    with faulty:
        harm = Once(run, 2, lambda: faulty.kill_superlink(2))
        faulty.start_run(app, run)
        wait_until(lambda: harm() or harm.done, 600, "The second round", every=0.2)
        wait_until(lambda: "does not know this run any more" in faulty.server_log(60), 600, "The end of the run")
        assert len(fm.Result.load(run).history) < ROUNDS
        faulty.control.register_all([node.key.public for node in faulty.nodes])
        outcome = faulty.wait_for(faulty.start_run(app, run), 1200)
        assert outcome == "completed", faulty.server_log(60)
    assert_same_bits(run, settings)


@pytest.mark.slow
def test_a_client_whose_clock_is_ahead(faulty, settings, tmp_path):
    """By 20 s: the SuperLink refuses its signatures. The round waits for it until the clock is right."""
    app, run = write_app(tmp_path / "app", settings.kept()), tmp_path / "run"

    def shift() -> None:
        faulty.shift_clock("node-1", 20.0)
        faulty.processes.kill("node-1")
        faulty.start("node-1")
        wait_until(lambda: "Round 3 waits for 1 of these clients" in faulty.server_log(200), 600, "The waiting round")
        faulty.environments.clear()
        faulty.processes.kill("node-1")

    with faulty:
        outcome = faulty.wait_for(faulty.start_run(app, run), 1200, Once(run, 2, shift))
        assert outcome == "completed", faulty.server_log(60)
    assert_same_bits(run, settings)


@pytest.mark.slow
def test_the_app_of_a_client_is_killed(faulty, settings, tmp_path):
    """While it works, in two rounds: the request is sent again."""
    app, run, kills = write_app(tmp_path / "app", settings.kept()), tmp_path / "run", []

    def kill() -> None:
        if len(kills) < 2 and (run / "metrics.jsonl").exists() and faulty.kill_node_app(1):
            kills.append(1)

    with faulty:
        outcome = faulty.wait_for(faulty.start_run(app, run), 1200, kill)
        assert len(kills) == 2
        assert outcome == "completed", faulty.server_log(60)
    assert_same_bits(run, settings)
