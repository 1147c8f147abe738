"""An asynchronous run over real processes whose server is killed: the same arrivals give the same model, to the bit."""

import pytest
import torch

import fedmos as fm
from fedmos.flower.local.progress import DeploymentProgress
from helpers.deploy_methods import CLIENTS, configuration

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
pytestmark = pytest.mark.deploy
ROUNDS = 8


def test_an_asynchronous_run_whose_server_is_killed(deployment, app, tmp_path):
    from helpers.scripted_network import deploy_in_order

    buffer = {"size": 2, "concurrency": CLIENTS}
    settings = configuration("SCAFFOLD", rounds=ROUNDS, selection={"name": "Uniform", "m": 1}, buffer=buffer)
    progress, killed = DeploymentProgress(tmp_path / "run"), []

    def watch() -> None:
        for record in progress.new_records():
            if record["round"] in (2, 5) and record["round"] not in killed and deployment.kill_server_app():
                killed.append(record["round"])

    state = deployment.run(app(settings), tmp_path / "run", timeout=1200, on_poll=watch)
    assert state.completed, deployment.server_log(60)
    found = fm.Result.load(tmp_path / "run")
    assert killed == [2, 5]
    assert [len(record.cohort) for record in found.history] == [2] * ROUNDS
    assert not any(record.abandoned or record.late for record in found.history)
    times = [record.time for record in found.history]
    assert times == sorted(times)
    # All clients train at any time, so the cohorts alone tell who was sent which model.
    repeated = deploy_in_order(tmp_path / "again", settings, [record.cohort for record in found.history])
    for mine, theirs in zip(found.history, repeated.history, strict=True):
        assert (mine.cohort, mine.versions, mine.ages) == (theirs.cohort, theirs.versions, theirs.ages)
    assert torch.equal(found.params, repeated.params)
