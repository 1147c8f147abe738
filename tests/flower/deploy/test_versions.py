"""A short deployment with the installed version of Flower, with and without the accelerators: the same bits."""

import pytest
import torch

import fedmos as fm
from fedmos.flower.local.app_template import write_app
from helpers.deploy_methods import configuration, simulated

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
pytestmark = pytest.mark.deploy


@pytest.mark.parametrize("plain", [False, True], ids=["accelerated", "plain"])
def test_a_deployment_by_public_interfaces_is_the_simulation(tmp_path, plain):
    from fedmos.flower.local.local_deployment import LocalDeployment

    data = {"name": "digits", "clients": 2, "partition": {"name": "IID"}}
    settings = configuration("SCAFFOLD", rounds=2, data=data)
    app = write_app(tmp_path / "app", settings.kept())
    with LocalDeployment(tmp_path / "processes", ["0", "1"], plain=plain) as deployment:
        state = deployment.run(app, tmp_path / "run", timeout=1200)
        assert state.completed, state
    assert torch.equal(fm.Result.load(tmp_path / "run").params, simulated(settings).params)
