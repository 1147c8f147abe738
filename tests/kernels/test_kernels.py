"""Convolutions of a cohort, memory layouts and tiles."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm
from fedmos.core.flat_model import FlatModel
from fedmos.engine import execution_plan
from fedmos.kernels import convolution, depthwise_convolution, tiles
from fedmos.kernels.convolution import without_unused_taps
from helpers.compiling import scalar_code


def test_convolutions_of_a_cohort_are_convolutions():
    """The layer that replaces nn.Conv2d on a GPU, outside and under vmap, on images that are not square."""
    layer = nn.Conv2d(40, 6, 3, stride=2, padding=1).double()
    ours = convolution.CohortConv2d(layer, None)
    x = torch.randn(3, 2, 40, 8, 6, dtype=torch.float64)

    def energy(conv):
        def f(w, x):
            return (torch.func.functional_call(conv, {"weight": w}, (x,)) ** 2).sum()

        return f

    w = torch.stack([layer.weight.detach() * k for k in (1, 2, 3)])
    for here, there in zip(
        torch.func.vmap(torch.func.grad(energy(ours), argnums=(0, 1)))(w, x),
        torch.func.vmap(torch.func.grad(energy(layer), argnums=(0, 1)))(w, x),
        strict=True,
    ):
        assert torch.allclose(here, there, rtol=1e-12)
    assert torch.allclose(ours(x[0]), layer(x[0]), rtol=1e-12)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3))
    model[2].register_forward_hook(lambda module, inputs, output: output)
    convolution.replace_convolutions(model, None)
    assert [type(m) is nn.Conv2d for m in model] == [False, True, True]


class Flattening(nn.Module):
    """Says `view` after a convolution, which images stored channels last do not stand."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.conv, self.last, self.view = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 10), view

    def forward(self, x):
        y = torch.relu(self.conv(x))
        self.seen = y.is_contiguous(memory_format=torch.channels_last)
        return self.last(y.view(len(y), -1) if self.view else y.flatten(1))


@pytest.mark.parametrize("view", [True, False])
def test_images_are_stored_channels_last_where_the_model_takes_them_so(view):
    torch.manual_seed(0)
    module, images = Flattening(view), torch.randn(5, 3, 8, 8)
    model = FlatModel(module, torch.device("cpu"), torch.float32)
    outputs = model(model.initial(), model.laid_out(images))
    assert model.module.seen is not view
    assert torch.allclose(outputs, module(images), atol=1e-6)
    exact = FlatModel(module, torch.device("cpu"), torch.float64)
    assert exact.laid_out(images.double()).is_contiguous()


@pytest.mark.parametrize(("kibibytes", "stages"), [(99, 2), (163, 2), (227, 3)], ids=["most", "A100", "H200"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tiles_fit_into_a_gpu_s_shared_memory(kibibytes, stages, dtype):
    """As many of either factor's as Triton makes room for there, where a loop has three stages."""
    for C, CO, K in product((1, 3, 10, 16, 20, 32, 64, 65), (6, 20, 64, 200), (1, 3, 5, 7)):
        x, rows, T = torch.empty((10, 20, C, 32, 32), dtype=dtype, device="meta"), 20 * 28 * 28, C * K * K
        found = [tiles.forward_tiles(x, CO, rows, T, pad) for pad in (0, 1)]
        sizes = [BT * (BR + BO) for BR, BT, BO, _ in found]
        BR, BT, BO, _ = tiles.weight_tiles(x, CO, rows, T, kibibytes * 1024)
        assert stages * dtype.itemsize * max(*sizes, BR * (BT + BO)) <= kibibytes * 1024


def test_a_gpu_with_room_gets_the_tiles_that_were_fastest_on_it():
    """MNIST's second layer, 10 → 20 channels."""
    x = torch.empty((25, 20, 10, 12, 12), device="meta")
    assert tiles.weight_tiles(x, 20, 20 * 8 * 8, 250, 227 * 1024)[:3] == (64, 256, 32)
    assert tiles.weight_tiles(x, 20, 20 * 8 * 8, 250, 99 * 1024)[:3] == (32, 128, 32)


@pytest.mark.parametrize("compiled", [False, True])
def test_convolutions_client_by_client_on_a_cpu(monkeypatch, compiled):
    monkeypatch.setattr(convolution, "_LARGE", 0)
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=10, seed=0)
    settings = {"data": data, "algorithm": fm.FedMoS(lr=0.1), "selection": fm.Uniform(m=4), "rounds": 3}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(32, 10))
    settings |= {"model": model, "local_steps": 2, "batch_size": 4}
    expected = fm.run(**settings, engine="loop").params
    if compiled:
        monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        result = fm.run(**settings, engine="batched")
    assert torch.allclose(result.params, expected, rtol=1e-5, atol=1e-6)


class Viewing(nn.Module):
    """Calls `view` on what convolutions return, some of them without a bias, and on what pooling returns."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 3, bias=False), nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)
        self.last = nn.Linear(27 + 3, 10)

    def forward(self, x):
        x = self.a(x)
        rows = x.view(x.size(0), 3, -1)
        y = self.b(x).view(len(x), -1)
        y += rows.flatten(1)  # the view of a tensor that nothing else uses
        return self.last(torch.cat([F.max_pool2d(y.view(x.shape), 2).view(len(x), -1), rows.mean(2)], 1))


@pytest.mark.parametrize("traced", [False, True])
def test_images_that_a_model_views_are_in_the_default_layout(monkeypatch, traced):
    for module in (convolution, depthwise_convolution):
        monkeypatch.setattr(module, "_LARGE", 0)
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=6, seed=0)
    torch.manual_seed(0)
    settings = {"model": Viewing(), "data": data, "algorithm": fm.FedAvg(lr=0.1), "selection": fm.Uniform(m=4)}
    settings |= {"rounds": 2, "local_steps": 2, "batch_size": 4}
    expected = fm.run(**settings, engine="loop").params
    monkeypatch.setattr(execution_plan, "why_not_vectorised", lambda task: None)  # as in a resumed run
    if traced:
        monkeypatch.setattr(torch._inductor, "compile", lambda program, arguments: program)
        monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    result = fm.run(**settings, engine="batched")
    assert torch.allclose(result.params, expected, rtol=1e-5, atol=1e-6)


def test_normalised_inputs_are_not_stored_channels_last():
    """PyTorch's group normalisation of constants in that layout ends the process in the backward pass."""
    images = torch.randn(5, 4, 8, 8)
    for model in (
        nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3)),
        nn.Sequential(nn.Conv2d(4, 4, 3).requires_grad_(False), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3)),
    ):
        assert FlatModel(model, torch.device("cpu"), torch.float32).laid_out(images) is images
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3))
    laid_out = FlatModel(model, torch.device("cpu"), torch.float32).laid_out(images)
    assert laid_out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7])
def test_taps_that_meet_no_pixel_are_left_out(size, stride, kernel):
    """The outputs stay the same, and no tap that is left has only zeros to meet."""
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    w = torch.randn(4, 3, kernel, kernel, dtype=torch.float64)
    for pad in range(kernel):
        if size + 2 * pad < kernel:
            continue
        fewer, less = without_unused_taps(x, w, stride, pad)
        expected = F.conv2d(x, w, stride=stride, padding=pad)
        torch.testing.assert_close(F.conv2d(x, fewer, stride=stride, padding=less), expected, rtol=1e-12, atol=1e-12)
        if size == 1:
            assert fewer.shape[-1] == 1 or expected.shape[-1] > 1
