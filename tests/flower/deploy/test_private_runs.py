"""A private run over real processes whose server is killed: it continues, with the ε of an undisturbed run."""

import pytest
import torch

import fedmos as fm
from fedmos.flower.local.progress import DeploymentProgress
from helpers.deploy_methods import configuration, simulated

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
pytestmark = pytest.mark.deploy


def test_a_private_run_whose_server_is_killed(deployment, app, tmp_path):
    privacy = {"name": "Gaussian", "clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3}
    settings = configuration("SCAFFOLD", rounds=5, selection={"name": "Bernoulli", "rate": 0.7}, privacy=privacy)
    progress, seen, killed = DeploymentProgress(tmp_path / "run"), {}, []

    def watch() -> None:
        for record in progress.new_records():
            seen.setdefault(record["round"], []).append(record["accuracy"])
            if record["round"] in (1, 3) and record["round"] not in killed and deployment.kill_server_app():
                killed.append(record["round"])

    state = deployment.run(app(settings), tmp_path / "run", timeout=1200, on_poll=watch)
    assert state.completed, deployment.server_log(60)
    assert killed == [1, 3]
    expected, found = simulated(settings), fm.Result.load(tmp_path / "run")
    assert [r.epsilon for r in found.history] == [r.epsilon for r in expected.history]
    assert [r.round for r in found.history] == [1, 2, 3, 4, 5]
    assert not any(r.abandoned or r.late for r in found.history)
    assert all(len(set(values)) == 1 for values in seen.values())  # a repeated round shows what it has shown
    assert not torch.equal(found.params, expected.params)
    assert {path.name[0] for path in (tmp_path / "run" / "releases").iterdir()} == {"2", "3", "4"}
