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


def test_the_server_takes_the_norms_of_updates_itself(tmp_path):
    """They are in the records, and clients send nothing for them."""
    given = arguments(algorithm=fm.Scaffold(lr=0.1), update_norms=True)
    simulated, plain = fm.run(**given), fm.run(**given | {"update_norms": False})
    deployed = Deployed(tmp_path, given).run()
    assert_same(deployed, plain)
    for mine, theirs in zip(deployed.history, simulated.history, strict=True):
        assert len(mine.update_norms) == len(mine.cohort)
        assert mine.update_norms == pytest.approx(theirs.update_norms, rel=1e-6)
