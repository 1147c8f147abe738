"""Folding of batch normalisation keeps what a model computes in evaluation mode."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm
from fedmos.models.fold import ChannelAffine

NORM = nn.modules.batchnorm._BatchNorm


class Block(nn.Module):
    """A residual block as in any ResNet; with `branch`, its forward pass cannot be traced."""

    def __init__(self, channels: int, branch: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels, affine=False)
        self.down = nn.Sequential(nn.Conv2d(channels, channels, 1, groups=channels), nn.BatchNorm2d(channels))
        self.branch = branch

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.branch and float(x.detach().sum()) > 1e9:
            return y
        return F.relu(y + self.down(x))


class PreActivation(nn.Module):
    """Normalisation before the convolution, one layer of it used twice, and a convolution with two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.shared, self.conv = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.a, self.b, self.after = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.conv(F.relu(self.bn(x)))
        x = x + self.after(x)
        return self.shared(self.a(x)) + self.shared(self.b(x))


def pretrained(*layers: nn.Module) -> nn.Module:
    """A model whose statistics, scales and shifts are not the initial ones, in train mode."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, NORM):
                module.running_mean.normal_(generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
                for p in module.parameters():
                    p.uniform_(0.5, 2, generator=generator)
    return model


def net(branch: bool = False) -> nn.Module:
    return pretrained(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4, eps=1e-3),
        nn.ReLU(),
        Block(4, branch),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 12, bias=False),
        nn.BatchNorm1d(12),
        nn.Linear(12, 10),
    )


def same(model: nn.Module, folded: nn.Module, x: torch.Tensor) -> bool:
    model.eval()
    return torch.allclose(model(x), folded(x), rtol=1e-5, atol=1e-5)


def kinds(model: nn.Module, kind: type) -> int:
    return sum(isinstance(module, kind) for module in model.modules())


def test_outputs_are_those_of_evaluation_mode():
    torch.manual_seed(0)
    model = net()
    folded = fm.models.fold_batchnorm(model)
    assert kinds(model, NORM) == 5
    assert kinds(folded, NORM) == kinds(folded, ChannelAffine) == 0
    assert same(model, folded, torch.randn(5, 1, 8, 8))
    assert type(folded) is nn.Sequential
    assert all(module.training for module in folded.modules())


def test_what_cannot_be_folded_becomes_scale_and_shift():
    torch.manual_seed(0)
    model = net(branch=True)
    folded = fm.models.fold_batchnorm(model)
    assert kinds(folded, ChannelAffine) == kinds(model, NORM) == 5
    assert same(model, folded, torch.randn(5, 1, 8, 8))
    transposed = [nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 6, 1, groups=2)]
    odd = pretrained(PreActivation(), *transposed, nn.BatchNorm2d(6))
    folded = fm.models.fold_batchnorm(odd)
    assert same(odd, folded, torch.randn(3, 4, 5, 5))
    assert kinds(folded, ChannelAffine) == 4
    alone = pretrained(nn.BatchNorm1d(4))[0]
    assert same(alone, fm.models.fold_batchnorm(alone), torch.randn(3, 4))


def test_frozen_layers_stay_frozen():
    model = net()
    model[0].requires_grad_(False)
    model[3].bn1.eval()
    folded = fm.models.fold_batchnorm(model)
    assert [p.requires_grad for p in folded[0].parameters()] == [False, False]
    assert folded[6].bias.requires_grad
    assert not folded[3].bn1.training


@pytest.mark.parametrize("function", ["fold_batchnorm", "convert_batchnorm", "merge_lora"])
def test_what_is_no_module_is_refused(function):
    with pytest.raises(ValueError, match=f"{function}: 'model' must be a torch.nn.Module, got 3"):
        getattr(fm.models, function)(3)


def test_layers_without_statistics_are_refused():
    with pytest.raises(ValueError, match=r"Cannot fold BatchNorm \('1'\).*use fm\.models\.convert_batchnorm"):
        fm.models.fold_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)))


def test_a_folded_model_trains_alike_on_both_engines(quick):
    torch.manual_seed(0)
    folded = fm.models.fold_batchnorm(net())
    runs = [quick(model=folded, rounds=1, engine=engine, dtype=torch.float64) for engine in ("loop", "batched")]
    assert torch.allclose(runs[0].params, runs[1].params, rtol=0, atol=1e-10)
    assert not torch.equal(runs[0].model[0].bias, folded[0].bias.double())
