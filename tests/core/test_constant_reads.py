"""What a model reads in Python while it is vectorised: constants, but nothing that differs between clients."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedmos.core import constant_reads
from fedmos.core.flat_model import FlatModel
from fedmos.core.trial import try_model
from fedmos.kernels.pooling import written_out

T = 4


class Reading(nn.Module):
    """Reads constants, some by the same line, and, if `own`, whether a sample is positive."""

    def __init__(self, own: bool = False) -> None:
        super().__init__()
        self.linear, self.own = nn.Linear(T, 3), own

    def forward(self, x):
        y = self.linear(x)
        for number in (-1.0, 2.0, -3.0):
            constant = torch.full((2,), number, dtype=x.dtype)
            if (constant > 0).all():
                y = y + constant.sum().item() * y.square()
        if torch.equal(torch.eye(T), torch.eye(T).flip(0)) or 3 not in torch.arange(T):
            y = y.exp()
        return y.sin() if self.own and x.amax() > 0 else y


def setting(own: bool = False):
    torch.manual_seed(0)
    model = FlatModel(Reading(own), torch.device("cpu"), torch.float64)
    x = torch.randn(2, 3, T, dtype=torch.float64)
    try_model(model, x[0])
    y = torch.stack([model.initial(), 2 * model.initial()])
    return model, y, x


def unreadable():
    raise AssertionError("read while a graph is captured")


def test_while_a_graph_is_captured_the_values_are_those_of_the_pass_before(monkeypatch):
    model, y, x = setting()
    expected = torch.stack([model(y[i], x[i]) for i in range(2)])
    assert torch.allclose(vmap(model)(y, x), expected)
    monkeypatch.setattr(constant_reads, "is_capturing", lambda: True)
    monkeypatch.setattr(constant_reads, "_untraced", unreadable)
    assert torch.allclose(vmap(model)(y, x), expected)
    with pytest.raises(AssertionError, match="read while"):  # no pass on three samples was before
        vmap(model)(y, x[:, :2])


def test_a_program_that_is_traced_may_read_constants():
    model, y, x = setting()
    with written_out.on():
        traced = make_fx(vmap(model))(y, x)
    assert torch.allclose(traced(3 * y, -x), torch.stack([model(3 * y[i], -x[i]) for i in range(2)]))


def test_what_clients_or_samples_share_by_chance_is_no_constant():
    model, y, x = setting(own=True)
    with pytest.raises(RuntimeError, match="data-dependent"):
        vmap(model)(y, x)
    shared = vmap(model, in_dims=(0, None))
    assert torch.allclose(shared(y, x[0].abs()), torch.stack([model(v, x[0].abs()) for v in y]))
    assert torch.allclose(shared(y, -x[0].abs()), torch.stack([model(v, -x[0].abs()) for v in y]))
    with written_out.on(), pytest.raises(RuntimeError, match="tracing tensor"):
        make_fx(shared)(y, x[0])
