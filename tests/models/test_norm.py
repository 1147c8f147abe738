"""Normalisation layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

import fedmos as fm
from fedmos.config import registry as registry
from helpers.models import flat


# Normalisation
@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 4), (3, 6, 4, 5)])
@pytest.mark.parametrize("how", [{}, {"affine": False}])
def test_group_norm_is_pytorchs(shape, how):
    generator = torch.Generator().manual_seed(0)
    theirs, ours = nn.GroupNorm(2, 6, eps=1e-3, **how), fm.models.GroupNorm(2, 6, eps=1e-3, **how)
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        with torch.no_grad():
            p.copy_(torch.randn(p.shape, generator=generator))
            q.copy_(p)
    x = (3 * torch.randn(shape, generator=generator) + 1).requires_grad_()
    outputs = theirs(x), ours(x)
    assert torch.allclose(*outputs, rtol=1e-6, atol=1e-6)
    gradients = [
        torch.autograd.grad(o.pow(3).sum(), [x, *m.parameters()]) for o, m in zip(outputs, (theirs, ours), strict=True)
    ]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-4)
    if how:
        return
    names = dict(ours.named_parameters())
    several = {name: torch.stack([p, 2 * p]).detach() for name, p in names.items()}
    together = vmap(lambda p, x: functional_call(ours, p, (x,)))(several, torch.stack([x, -x]))
    with torch.no_grad():
        for q in ours.parameters():
            q.mul_(2)
    assert torch.allclose(together[1], ours(-x), rtol=1e-6, atol=1e-6)


class Residual(nn.Module):
    """A block as in any ResNet, with a layer of normalisation used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), self.bn1

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def test_groups_are_counted():
    with pytest.raises(ValueError, match="convert_batchnorm: 'groups' must be an integer ≥ 1, got 0"):
        fm.models.convert_batchnorm(nn.BatchNorm2d(4), groups=0)


def test_a_resnet_with_batch_norm_is_converted_and_trains(quick):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4, eps=1e-3),
        nn.ReLU(),
        Residual(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(16, affine=False),
        nn.Linear(16, 10),
    )
    with torch.no_grad():
        model[1].weight.fill_(2)
    converted = fm.models.convert_batchnorm(model)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in converted.modules())
    assert isinstance(converted[1], nn.GroupNorm)
    assert (converted[1].num_groups, converted[1].eps) == (2, 1e-3)
    assert torch.equal(converted[1].weight, model[1].weight)
    assert converted[3].bn1 is converted[3].bn2
    assert list(converted[6].parameters()) == []
    assert torch.equal(flat(model), flat(converted))
    runs = [quick(model=converted, rounds=1, engine=engine, dtype=torch.float64) for engine in ("loop", "batched")]
    assert torch.allclose(runs[0].params, runs[1].params, rtol=0, atol=1e-10)
