"""Reports of deployed clients."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import fedmos as fm
from helpers.flower_runs import Deployed, arguments, assert_same


@dataclass(frozen=True)
class Reporting(fm.Selector):
    """Three clients in turn, which report everything there is."""

    asked: tuple[str, ...] = ("update_norm", "gradient_noise", "length", "loss", "start_loss", "start_squared_loss")

    @property
    def reports(self):
        return self.asked

    def select(self, view):
        return torch.tensor([view.round % 6, (view.round + 2) % 6, (view.round + 3) % 6]), torch.full((3,), 1 / 3)


@dataclass(frozen=True, kw_only=True)
class Telling(fm.Algorithm):
    """FedAvg that uploads the length of its last step, too."""

    lr: float
    up = ("delta", ("length", ()))

    def begin(self, y, c, grad):
        return {"length": torch.zeros_like(c.K)}

    def step(self, y, s, c, grad, k):
        step = c.lr * grad(y)
        return y - step, {"length": step.norm(dim=-1, keepdim=True)}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "length": s["length"]}, {}


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_clients_report_what_simulated_ones_do(tmp_path, engine):
    """The same numbers and bytes: five numbers besides the uploads, of which one is the sixth report."""
    given = arguments(algorithm=Telling(lr=0.1), selection=Reporting(), engine=engine)
    simulated = fm.run(**given)
    deployed = Deployed(tmp_path, given).run()
    assert_same(deployed, simulated, exact=engine == "loop")
    D = len(simulated.params)
    assert {record.bytes_up for record in deployed.history} == {3 * (D + 1 + 5) * 4}
    for name in given["selection"].reports:
        key = f"reported.{name}"
        torch.testing.assert_close(deployed.selection[key], simulated.selection[key], equal_nan=True)
