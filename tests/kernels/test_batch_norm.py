"""Batch normalisation with shares against PyTorch's, alone and vectorised."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from fedmos.kernels.batch_norm import normalise

B, C, P, EPS = 6, 3, 5, 1e-3


def tensors(seed: int = 0, padding: int = 0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(B, C, P, generator=g, dtype=torch.float64)
    scale, shift = (torch.randn(C, generator=g, dtype=torch.float64) for _ in range(2))
    share = torch.full((B,), 1 / (B - padding), dtype=torch.float64)
    share[B - padding :] = 0
    return x, share, scale, shift


def weights(x):
    return torch.arange(x.numel(), dtype=x.dtype).view(x.shape).sin()


@pytest.mark.parametrize("padding", [0, 2])
def test_outputs_moments_and_gradients_are_pytorchs(padding):
    x, share, scale, shift = tensors(padding=padding)
    given = [v.clone().requires_grad_() for v in (x, scale, shift)]
    expected = F.batch_norm(given[0][: B - padding], None, None, given[1], given[2], training=True, eps=EPS)
    (expected * weights(expected)).sum().backward()
    own = [v.clone().requires_grad_() for v in (x, scale, shift)]
    out, mean, var = normalise(own[0], share, own[1], own[2], EPS)
    kept = out[: B - padding]
    (kept * weights(kept)).sum().backward()
    assert torch.allclose(kept, expected, rtol=0, atol=1e-12)
    assert torch.allclose(mean, x[: B - padding].mean((0, 2)), rtol=0, atol=1e-13)
    assert torch.allclose(var, x[: B - padding].var((0, 2), correction=0), rtol=0, atol=1e-13)
    for a, b in zip(own, given, strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=0, atol=1e-12)


def test_gradients_by_finite_differences():
    """At padded rows, too, though the loss of a run does not depend on them."""
    x, share, scale, shift = tensors(padding=1)
    given = tuple(v.requires_grad_() for v in (x, scale, shift))
    assert torch.autograd.gradcheck(lambda x, a, b: normalise(x, share, a, b, EPS)[0], given)


@pytest.mark.parametrize("shared", [False, True])
def test_vectorised_over_clients(shared):
    """Each client has its own padding; the scale may be one for all clients."""
    clients = [tensors(seed, padding=seed) for seed in range(3)]
    x, share, scale, shift = (torch.stack(v) for v in zip(*clients, strict=True))
    scale = scale[0] if shared else scale

    def loss(x, share, scale, shift):
        out, mean, var = normalise(x, share, scale, shift, EPS)
        return (out * weights(out) * (share > 0)[:, None, None]).sum() + 0 * (mean + var).sum()

    axes = (0, 0, None if shared else 0, 0)
    found = vmap(grad(loss, argnums=(0, 2, 3)), in_dims=axes)(x, share, scale, shift)
    for i in range(3):
        alone = grad(loss, argnums=(0, 2, 3))(x[i], share[i], scale if shared else scale[i], shift[i])
        for a, b in zip(found, alone, strict=True):
            assert torch.allclose(a[i], b, rtol=0, atol=1e-12)
