"""Models that compute something else when they are vectorised are found by their gradients."""

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm


class Doubled(torch.autograd.Function):
    """Twice its input, or with a wrong rule for `vmap` three times."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 2 * g

    @staticmethod
    def vmap(info, in_dims, x):
        return 3 * x, in_dims[0]


class Averaged(torch.autograd.Function):
    """Divides gradients by the size of the batch, padding included."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.samples = len(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g / ctx.samples


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.body, self.head, self.how = nn.Linear(8, 5), nn.Linear(5, 3), how

    def forward(self, x):
        h = self.body(x)
        if self.how == "a wrong rule":
            return self.head(Doubled.apply(h))
        if self.how == "the size of the batch":
            return self.head(Averaged.apply(h))
        try:
            scale = float(self.head.weight.detach().abs().sum())
        except RuntimeError:  # that of `vmap`
            scale = 1.0
        return self.head(h) * scale


def train(model: nn.Module, engine: str, sizes=(5, 3, 1), **how) -> fm.Result:
    rng = np.random.default_rng(1)
    data = [(rng.normal(size=(n, 8)).astype("float32"), rng.integers(3, size=n)) for n in sizes]
    given = {"data": fm.FederatedData.from_arrays(data), "algorithm": fm.FedAvg(lr=0.1), "selection": fm.Full()}
    return fm.run(model, **given | {"rounds": 2, "local_steps": 2, "engine": engine} | how)


@pytest.mark.parametrize("how", ["a wrong rule", "a caught exception"])
def test_models_that_are_vectorised_wrongly_are_trained_client_by_client(how, caplog):
    torch.manual_seed(0)
    model = Net(how)
    loop, auto = (train(model, engine) for engine in ("loop", "auto"))
    assert auto.info["engine"] == "loop"
    assert torch.equal(loop.params, auto.params)
    assert "its gradient differs from that of client by client training by" in caplog.text
    with pytest.raises(ValueError, match=r"its gradient differs .* by [\d.]+%.*; use engine='loop'"):
        train(model, "batched")


@pytest.mark.parametrize("sizes", [(5, 3, 4), (3, 3, 3, 5)])
def test_clients_are_compared_with_padding(sizes):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="or a use of the size of the batch"):
        train(Net("the size of the batch"), "batched", sizes)
    assert train(Net("the size of the batch"), "batched", (4, 4, 4)).info["engine"] == "batched"


@pytest.mark.parametrize("how", [{}, {"dtype": torch.float64}, {"precision": "bf16", "device": "cpu"}])
def test_rounding_is_no_difference(how):
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
    assert train(model, "batched", **how).info["engine"] == "batched"


def test_a_gradient_of_rounding_only_is_no_difference():
    """At the minimum of a loss, gradients are zero but for rounding."""
    x = np.random.default_rng(0).normal(size=(6, 8)).astype("float32")
    model = nn.Linear(8, 3)
    with torch.no_grad():
        y = model(torch.tensor(x)).numpy()
    data = fm.FederatedData.from_arrays([(x, y), (x[:4], y[:4])])
    assert train(model, "batched", data=data, loss="mse").info["engine"] == "batched"
