"""Attention of a cohort equals attention client by client, in one fused call."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from fedmos.kernels.attention import attention

M, B, H, L, S, E = 3, 2, 2, 4, 5, 6
CROSS = ((B, H, L, E), (B, H, S, E), (B, H, S, E))
SELF = ((B, H, L, E),) * 3


def allowed(*shape):
    """A mask by which the first query of the first sample attends to nothing."""

    def make(generator):
        mask = torch.rand(shape, generator=generator) > 0.4
        if len(shape) == 4 and shape[-2] == L:
            mask[0, :, 0] = False
        return mask

    return make


def added(*shape):
    return lambda generator: torch.randn(shape, generator=generator, dtype=torch.float64)


def banned(*shape):
    return lambda generator: torch.zeros(shape, dtype=torch.float64).masked_fill(
        ~allowed(*shape)(generator), -torch.inf
    )


SHAPES = {
    "heads": CROSS,
    "values of another size": ((B, H, L, E), (B, H, S, E), (B, H, S, E + 1)),
    "without samples": ((H, L, E), (H, S, E), (H, S, E)),
    "without heads": ((L, E), (S, E), (S, E)),
    "two axes of samples": ((B, 3, H, L, E), (B, 3, H, S, E), (B, 3, H, S, E)),
    "keys that samples share": ((B, H, L, E), (1, H, S, E), (H, S, E)),
    "keys that heads share": ((B, H, L, E), (B, 1, S, E), (1, 1, S, E)),
}
MASKS = {
    "bool": allowed(L, S),
    "bool, of heads": allowed(H, L, S),
    "bool, padding": allowed(B, 1, 1, S),
    "bool, nothing to attend to": allowed(B, 1, L, S),
    "float": added(L, S),
    "float, padding": added(B, 1, 1, S),
    "float, of everything": added(B, H, L, S),
    "float, nothing to attend to": banned(B, H, L, S),
}


def plain(q, k, v, mask, is_causal=False, scale=None, enable_gqa=False):
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


def score(function, tensors, how):
    y = function(*tensors, **how)
    return (y.sin() * torch.arange(y.numel(), dtype=y.dtype).view(y.shape)).sum()


def compare(shapes, make_mask=None, own_mask=False, of_mask=False, **how):
    """Hold gradients under `vmap` against autograd's of PyTorch's function, client by client."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(M, *shape, dtype=torch.float64, generator=generator) for shape in shapes]
    mask = None
    if make_mask is not None:
        mask = torch.stack([make_mask(generator) for _ in range(M)]) if own_mask else make_mask(generator)
    numbers = (0, 1, 2, 3) if of_mask else (0, 1, 2)
    ours = vmap(grad(lambda *given: score(attention, given, how), numbers), in_dims=(0, 0, 0, 0 if own_mask else None))(
        *tensors, mask
    )
    for i in range(M):
        leaves = [v[i].clone().requires_grad_() for v in tensors]
        own = mask[i] if own_mask else mask
        if of_mask:
            leaves.append(own.clone().requires_grad_())
        expected = torch.autograd.grad(score(plain, (leaves if of_mask else [*leaves, own]), how), leaves)
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a[i], b, rtol=0, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    compare(SHAPES[name])
    compare(SHAPES[name], allowed(L, S), own_mask=True)


def test_causal_scaled_and_grouped():
    compare(SELF, is_causal=True)
    compare(CROSS, is_causal=True)
    compare(SELF, allowed(B, 1, 1, L), is_causal=True)
    compare(CROSS, scale=0.3)
    compare(((B, 4, L, E), (B, 2, S, E), (B, 2, S, E)), enable_gqa=True)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_all_clients_and_of_each(name, own):
    compare(CROSS, MASKS[name], own_mask=own)


@pytest.mark.parametrize("shape", [(L, S), (H, 1, S), (B, 1, L, S), (B, H, L, S)])
def test_masks_with_parameters(shape):
    compare(CROSS, added(*shape), own_mask=True, of_mask=True)


def test_a_row_of_a_mask_without_entries_gives_what_pytorch_gives():
    q, k, v = (torch.randn(M, B, H, L, E, generator=torch.Generator().manual_seed(i)) for i in range(3))
    mask = torch.ones(L, L, dtype=torch.bool).tril(-1)
    for given in (mask, torch.zeros(L, L).masked_fill(~mask, -torch.inf)):
        ours = vmap(attention, in_dims=(0, 0, 0, None))(q, k, v, given)
        theirs = torch.stack([F.scaled_dot_product_attention(*some, given) for some in zip(q, k, v, strict=True)])
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_two_levels_of_vmap():
    q = torch.randn(M, 2, B, H, L, E, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(2, B, 1, 1, L, generator=torch.Generator().manual_seed(1)) > 0.2
    ours = vmap(vmap(attention), in_dims=(0, 0, 0, None))(q, q, q, mask)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, q, q, mask))


def test_autocast_uses_its_precision_in_both_passes():
    q, k, v = (torch.randn(M, B, H, L, E, generator=torch.Generator().manual_seed(i)) for i in range(3))

    def loss(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            y = attention(q, k, v)
        assert y.dtype == torch.bfloat16
        return y.float().square().sum()

    for a, b in zip(vmap(grad(loss, (0, 1, 2)))(q, k, v), grad(loss, (0, 1, 2))(q[0], k[0], v[0]), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a[0], b, rtol=0.1, atol=0.1)


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("clients", [2, 5])
def test_one_fused_call_for_all_clients(clients):
    """Two in the forward direction, because the backward pass computes it again; whatever the number of clients."""
    q = torch.randn(clients, B, H, L, E)
    mask = torch.ones(clients, B, 1, 1, L, dtype=torch.bool)
    gradient = vmap(grad(lambda q, mask: attention(q, q, q, mask).sum()))
    with Count() as count:
        gradient(q, mask)
    assert count.calls["_scaled_dot_product_flash_attention_for_cpu"] == 2
    assert count.calls["_scaled_dot_product_flash_attention_for_cpu_backward"] == 1
    traced = Counter(str(node.target) for node in make_fx(gradient)(q, mask).graph.nodes)
    assert traced["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"] == 1
