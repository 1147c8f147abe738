"""Triton's convolutions are PyTorch's, on a GPU or in Triton's interpreter."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedmos.kernels.convolution import CohortConv1d
from fedmos.kernels.convolution_ops import padding

DEVICE = os.environ.get("FEDMOS_TEST_DEVICE", "cpu")

pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET"), reason="needs a GPU, or Triton's interpreter"
)

SHAPES = [  # clients, samples, channels in and out, image, kernel, stride, padding
    (2, 2, 3, 4, (6, 6), (3, 3), 1, 1),
    (2, 1, 4, 4, (5, 5), (3, 3), 2, 1),
    (2, 2, 3, 4, (1, 20), (1, 5), 1, 2),
    (2, 1, 1, 4, (1, 40), (1, 8), 4, 3),
    (2, 1, 32, 16, (1, 10), (1, 3), 1, 1),
    (1, 2, 16, 8, (1, 9), (1, 3), 2, 0),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cohort_has_the_convolutions_of_its_clients(shape):
    from fedmos.kernels import implicit_gemm

    M, B, C, CO, image, kernel, stride, pad = shape
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(M, *size, generator=g) for size in ((B, C, *image), (CO, C, *kernel)))
    x, w = (v.to(DEVICE).requires_grad_() for v in (x, w))
    y = torch.stack(
        [
            F.conv2d(a.double(), b.double(), stride=stride, padding=padding(kernel, pad))
            for a, b in zip(x, w, strict=True)
        ]
    )
    dy = torch.randn(y.shape, generator=g).to(DEVICE)
    dx, dw = torch.autograd.grad(y, (x, w), dy.double())
    x, w = x.detach(), w.detach()
    for found, expected in (
        (implicit_gemm.forward(x, w, stride, pad, "ieee").transpose(0, 1), y),
        (implicit_gemm.input_gradient(dy, w, image, stride, pad, "ieee").transpose(0, 1), dx),
        (implicit_gemm.weight_gradient(x, dy, kernel, stride, pad, "ieee"), dw),
    ):
        assert torch.allclose(found, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(DEVICE == "cpu", reason="the layer is for a GPU")
@pytest.mark.parametrize("layer", [nn.Conv1d(8, 16, 3, padding=1), nn.Conv1d(1, 8, 20, 4, padding=3, bias=False)])
def test_a_layer_for_series(layer):
    ours, layer = CohortConv1d(layer, None).to(DEVICE), layer.to(DEVICE)
    x = torch.randn(3, 2, layer.in_channels, 50, device=DEVICE)
    w = torch.stack([layer.weight.detach() * k for k in (1, 2, 3)])

    def energy(conv):
        return lambda w, x: (torch.func.functional_call(conv, {"weight": w}, (x,)) ** 2).sum()

    for f in (energy(ours), energy(layer)):
        f(w[0], x[0])
    found, expected = (torch.func.vmap(torch.func.grad(energy(c), argnums=(0, 1)))(w, x) for c in (ours, layer))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-3)
    assert ours(x[0]).is_contiguous()
