"""Gradients within `vmap` equal those of `torch.func`, with and without a graph of the backward pass."""

import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import vmap

from fedmos.engine.differentiation import cohort_gradient, grad_and_value

M, D = 4, 3
WEIGHTS = [torch.randn(D, D, generator=torch.Generator().manual_seed(k)) for k in range(3)]


def energy(y, x):
    h = x * (y[0] + y[1] if isinstance(y, tuple) else y)
    for w in WEIGHTS:
        h = torch.tanh(h @ w)
    return h.square().mean()


def with_aux(y, x):
    return energy(y, x), x.sum()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(M, D, generator=generator), torch.randn(M, 5, D, generator=generator)


@pytest.mark.parametrize("make", [grad_and_value, partial(grad_and_value, create_graph=False)], ids=["graph", "none"])
@pytest.mark.parametrize("grad_mode", [True, False])
def test_the_bits_of_pytorch(batch, grad_mode, make):
    y, x = batch
    with torch.set_grad_enabled(grad_mode):
        for given in (y, (y, 2 * y)):
            ours, theirs = vmap(make(energy))(given, x), vmap(torch.func.grad_and_value(energy))(given, x)
            for a, b in zip(
                torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs), strict=True
            ):
                assert torch.equal(a, b)
                assert not a.requires_grad
        gradient, (value, aux) = vmap(make(with_aux, has_aux=True))(y, x)
    assert torch.equal(gradient, vmap(torch.func.grad(energy))(y, x))
    assert torch.equal(value, vmap(energy)(y, x))
    assert torch.equal(aux, x.sum((1, 2)))


def test_an_unused_argument_has_a_gradient_of_zero(batch):
    gradient, value = vmap(grad_and_value(lambda y, x: x.sum()))(*batch)
    assert torch.equal(gradient, torch.zeros(M, D))
    assert torch.equal(value, batch[1].sum((1, 2)))


class Watched(torch.autograd.Function):
    """Records in the backward pass how many of the gradients that it returned before are still alive."""

    alive, seen = [], []

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, dy):
        dx = 2 * dy
        Watched.alive.append(weakref.ref(dx))
        Watched.seen.append(sum(ref() is not None for ref in Watched.alive))
        return dx

    @staticmethod
    def vmap(info, in_dims, x):
        return Watched.apply(x), in_dims[0]


def test_gradients_of_activations_are_freed(batch):
    def chain(y, x):
        h = x * y
        for _ in range(6):
            h = Watched.apply(torch.tanh(h))
        return h.mean()

    most = {}
    for create_graph in (True, False):
        Watched.alive, Watched.seen = [], []
        vmap(grad_and_value(chain, create_graph=create_graph))(*batch)
        most[create_graph] = max(Watched.seen)
    assert most[False] <= 2 < most[True]


def test_errors_of_the_function_leave_no_level_behind(batch):
    def fails(y, x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        vmap(grad_and_value(fails))(*batch)
    assert torch._C._functorch.maybe_current_level() is None
    nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()


def test_where_vmap_does_not_support_it_nothing_is_freed():
    """The backward kernel of GroupNorm copies images, channels last, in a way for which vmap has no rule."""
    layer = nn.GroupNorm(2, 4)

    def norm(w, x):
        return torch.func.functional_call(layer, {"weight": w}, (x.movedim(-1, 1) ** 2,)).square().mean()

    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(M, 4, generator=generator), torch.randn(M, 2, 5, 5, 4, generator=generator)
    expected = vmap(torch.func.grad_and_value(norm))(w, x)
    with pytest.raises(RuntimeError):
        vmap(grad_and_value(norm, create_graph=False))(w, x)
    gradient = cohort_gradient(norm, frugal=True)
    for _ in range(2):
        assert all(map(torch.equal, gradient(w, x), expected))


def test_errors_of_the_function_are_raised():
    def fails(y, x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        cohort_gradient(fails, frugal=True)(torch.zeros(2, 3), torch.zeros(2, 3))
