"""Methods over real processes, with TLS and node authentication: the simulator's model, cohorts and bytes."""

import pytest
import torch

import fedmos as fm
from helpers.deploy_methods import METHODS, configuration, simulated

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
pytestmark = pytest.mark.deploy


@pytest.mark.parametrize("method", METHODS)
def test_the_deployment_is_the_simulation(deployment, app, tmp_path, method):
    settings = configuration(method)
    state = deployment.run(app(settings), tmp_path / "run", timeout=1200)
    assert state.completed, f"{state.details}\n{deployment.server_log(60)}"
    expected, found = simulated(settings), fm.Result.load(tmp_path / "run")
    for column in ("cohort", "weights", "bytes_down", "bytes_up"):
        assert found.history.to_dict()[column] == expected.history.to_dict()[column], column
    assert torch.equal(found.params, expected.params)
