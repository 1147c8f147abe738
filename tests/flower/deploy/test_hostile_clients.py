"""A client that sends what it should not, over real processes: refused and logged in every round, and the run completes."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fedmos as fm
from helpers.deploy_methods import configuration

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
pytestmark = pytest.mark.deploy

REASONS = [
    "'delta' is not finite",
    "'delta' must be of shape",
    "'delta' must be of dtype float32, got float64",
    "its vectors are none instead of delta",
    "'delta' must be serialised as fedmos.raw, got numpy.ndarray",
    "'delta' must be of shape",
    "its 'round' is 5 instead of 6",
    "its app failed",
]


@dataclass(frozen=True, kw_only=True)
class WithoutOne(fm.FedAvg):
    """The client with importance `who` sends NaN, which a simulation drops."""

    who: float

    def finish(self, y, s, c, grad):
        return {"delta": torch.where(c.p == self.who, torch.nan, y - c.x)}, {}


def test_a_hostile_client(deployment, app, tmp_path):
    settings = configuration(
        "rpow-d", rounds=len(REASONS) + 1, selection={"name": "Full"}, deploy={"quarantine": "off"}
    )
    folder = app(settings)
    (client,) = folder.glob("*/client_app.py")
    shutil.copy(Path(__file__).with_name("hostile_client_app.py"), client)
    state = deployment.run(folder, tmp_path / "run", timeout=1200)
    assert state.completed, deployment.server_log(60)

    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    refused = [line for line in log if "Refused the reply of client '1' (node " in line]
    assert len(refused) == len(REASONS)
    for t, (line, reason) in enumerate(zip(refused, REASONS, strict=True)):
        assert f"in round {t + 1}: {reason}" in line
    (anomaly,) = [line for line in log if "Anomaly: dropped the update of client '1' (node " in line]
    assert f"in round {len(REASONS) + 1}: 'delta' has a norm of" in anomaly
    parts = settings.arguments(settings.algorithm, settings.selection, settings.seed)
    who = float(parts["data"].importance[1].to(torch.float32))
    poisoned = WithoutOne(lr=parts["algorithm"].lr, who=who)
    expected = fm.run(**parts | {"algorithm": poisoned, "on_bad_update": "drop"})
    assert torch.equal(fm.Result.load(tmp_path / "run").params, expected.params)
