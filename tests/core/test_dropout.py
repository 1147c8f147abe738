"""Dropout draws from its own streams, the same in every engine."""

import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.core.dropout import StreamDropout
from fedmos.core.flat_model import FlatModel
from helpers.engines import task


def test_dropout_drops_the_right_share_and_keeps_the_mean():
    layer = StreamDropout(0.3, channels=False).train()
    layer.key = torch.arange(1000)
    out = layer(torch.ones(1000, 7, 3))
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert abs(float((out == 0).double().mean()) - 0.3) < 0.01
    channels = StreamDropout(0.5, channels=True).train()
    channels.key = torch.arange(50)
    dropped = (channels(torch.ones(50, 6, 4, 4)) == 0).flatten(2)
    assert torch.equal(dropped.any(2), dropped.all(2))
    assert 0.3 < float(dropped.double().mean()) < 0.7
    layer.eval()
    assert torch.equal(layer(torch.ones(2, 2)), torch.ones(2, 2))


@pytest.mark.parametrize("make", [fm.models.cnn_digits, lambda **more: fm.models.mlp(features=64, **more)])
def test_dropout_is_the_same_on_both_engines_and_differs_from_none(quick, make):
    runs = {
        (engine, dropout): quick(
            model=make(dropout=dropout), engine=engine, dtype=torch.float64, algorithm=fm.FedMoS(lr=0.1), local_steps=3
        ).params
        for engine in ("loop", "batched")
        for dropout in (True, False)
    }
    assert torch.allclose(runs["loop", True], runs["batched", True], rtol=0, atol=1e-12)
    assert not torch.allclose(runs["loop", True], runs["loop", False], atol=1e-4)


class Twice(nn.Module):
    """One dropout layer used twice, and known by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(64, 10), nn.Dropout(0.5)
        self.again = self.drop
        self.seen = []

    def forward(self, x):
        ones = torch.ones(len(x), 50)
        self.seen.append((self.drop(ones), self.again(ones)))
        return self.linear(x.flatten(1))


def test_a_dropout_layer_used_twice_draws_two_masks():
    how = task(local_steps=1)
    model = FlatModel(Twice(), torch.device("cpu"), torch.float64)
    model.module.train()
    for _ in range(2):
        model(model.initial(), torch.zeros(3, 64, dtype=torch.float64), torch.tensor([1, 2, 3]))
    (a, b), (c, d) = model.module.seen
    assert not torch.equal(a, b)
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert how.model.has_dropout is False
