"""A deployment of a network with BatchNorm: the bits and bytes of the simulation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from helpers.flower_runs import arguments, assert_same


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, momentum=None), nn.Tanh(), nn.Linear(8, 3))


D, N, AFFINE = sum(p.numel() for p in network().parameters()), 2 * 8 + 1, 2 * 8


@pytest.mark.parametrize("engine", ["loop", pytest.param("batched", marks=pytest.mark.extended)])
@pytest.mark.parametrize(("mode", "extra"), [("local", N), ("local-affine", N + AFFINE), ("group", 0), ("frozen", 0)])
def test_the_same_as_the_simulation(deployed, mode, extra, engine):
    """Clients keep their statistics in their folders, and the server has the average."""
    given = arguments(model=network(), algorithm=fm.Scaffold(lr=0.05), batchnorm=mode, engine=engine)
    result, expected = deployed(given).run(), fm.run(**given)
    assert_same(result, expected)
    for record in result.history:
        S = len(record.cohort)
        assert (record.bytes_down, record.bytes_up) == (4 * S * 2 * D, 4 * S * (2 * D + extra))
    for (name, v), mine in zip(expected.model.state_dict().items(), result.model.state_dict().values(), strict=True):
        assert torch.equal(mine, v), name


def test_coded_uploads(deployed):
    """Statistics travel beside the bytes of the code, as they are."""
    given = arguments(model=network(), batchnorm="local", uplink=fm.codecs.Quantize(4))
    result, expected = deployed(given).run(), fm.run(**given)
    assert_same(result, expected)


@pytest.mark.parametrize("selection", [fm.PowerOfChoice(m=2, d=4), fm.ActiveFL(m=3)], ids=lambda s: type(s).__name__)
def test_losses_at_x_are_refused(deployed, selection):
    given = arguments(model=network(), batchnorm="local", selection=selection)
    with pytest.raises(ValueError, match="Cannot ask the clients of a deployment for losses"):
        deployed(given).run()


def test_training_metrics_are_refused(deployed):
    with pytest.raises(ValueError, match="use a selection without them and train_metrics=False"):
        deployed(arguments(model=network(), batchnorm="local"), train_metrics=True).run()
