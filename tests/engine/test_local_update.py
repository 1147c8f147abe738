"""The temporary values of clients with different numbers of steps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import fedmos as fm

RAGGED = {"local_steps": None, "local_epochs": 2, "batch_size": 4, "rounds": 2, "dtype": torch.float64}


@dataclass(frozen=True, kw_only=True)
class OwnAdam(fm.Algorithm):
    """Adam that counts its steps in a Python number."""

    lr: float = 0.01

    def begin(self, y, c, grad):
        return {"m": torch.zeros_like(y), "v": torch.zeros_like(y), "t": 0, "first": True, "eps": 1e-8}

    def direction(self, y, s, c, grad, k):
        g, t = grad(y), s["t"] + 1
        m, v = 0.9 * s["m"] + 0.1 * g, 0.999 * s["v"] + 0.001 * g**2
        d = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + s["eps"])
        return d, {"m": m, "v": v, "t": t, "first": False, "eps": s["eps"]}


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_numbers_have_the_precision_of_the_run(quick, engine):
    own = quick(algorithm=OwnAdam(), engine=engine, selection=fm.Full(), **RAGGED)
    local = fm.local.Adam()
    expected = quick(algorithm=fm.FedAvg(lr=0.01), selection=fm.Full(), local=local, **RAGGED)
    assert torch.allclose(own.params, expected.params, rtol=0, atol=1e-13)


def test_other_values_are_refused_where_steps_differ(quick):
    class Remembers(OwnAdam):
        def begin(self, y, c, grad):
            return {"seen": []}

        def direction(self, y, s, c, grad, k):
            return grad(y), {"seen": [*s["seen"], k]}

    with pytest.raises(ValueError, match="Remembers: 'direction' must return tensors and numbers in s where clients"):
        quick(algorithm=Remembers(), engine="batched", selection=fm.Full(), **RAGGED)
