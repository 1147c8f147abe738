"""Transposed convolutions without overlap as products of matrices."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedmos.kernels import transposed_convolution
from fedmos.kernels.transposed_convolution import replace_transposed_convolutions

LAYERS = {
    "1d": (lambda: nn.ConvTranspose1d(3, 4, 2, stride=2), (5,)),
    "2d": (lambda: nn.ConvTranspose2d(3, 4, (2, 3), stride=(2, 3), bias=False), (4, 5)),
    "3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 3, 4)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_products_are_transposed_convolutions(case, monkeypatch):
    torch.manual_seed(0)
    make, places = LAYERS[case]
    layer = nn.Sequential(make()).double()
    ours = copy.deepcopy(layer)
    replace_transposed_convolutions(ours)
    used = []
    product = transposed_convolution.patches
    monkeypatch.setattr(transposed_convolution, "patches", lambda x, w: used.append(1) or product(x, w))
    params = {name: torch.randn(3, *p.shape, dtype=torch.float64) for name, p in layer.named_parameters()}
    x = torch.randn(3, 2, layer[0].in_channels, *places, dtype=torch.float64)

    def gradients(model):
        return vmap(grad(lambda p, x: functional_call(model, p, (x,)).sin().sum(), argnums=(0, 1)))(params, x)

    (here, dx), (there, expected) = gradients(ours), gradients(layer)
    assert used
    assert torch.allclose(dx, expected, rtol=1e-12, atol=1e-12)
    for name, g in there.items():
        assert torch.allclose(here[name], g, rtol=1e-12, atol=1e-12), name
    del used[:]
    assert torch.equal(ours(x[0]), layer(x[0]))
    assert not used


def test_other_transposed_convolutions_stay():
    model = nn.Sequential(
        nn.ConvTranspose2d(2, 2, 3, stride=2),
        nn.ConvTranspose2d(2, 2, 2, stride=2, groups=2),
        nn.ConvTranspose2d(2, 2, 2, stride=2, padding=1),
        nn.ConvTranspose2d(2, 2, 3, stride=3, dilation=2),
        nn.ConvTranspose2d(2, 2, 2, stride=2, output_padding=1),
    )
    replace_transposed_convolutions(model)
    assert all(type(layer) is nn.ConvTranspose2d for layer in model)
