"""Networks with BatchNorm, a small federation, and federated averaging written by hand with PyTorch's modules."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm

SIZES = (7, 10, 8, 12)


class ConvNet(nn.Module):
    """BatchNorm of all kinds: with and without scale, by momentum and cumulative, used once and twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, momentum=None)
        self.linear, self.norm3 = nn.Linear(4 * 16, 6, bias=False), nn.BatchNorm1d(6, affine=False, eps=1e-3)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        x = self.norm1(self.conv1(x)).relu()
        x = self.norm1(self.norm2(self.conv2(x)).relu())
        return self.last(self.norm3(self.linear(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return (self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())) + self.short(x)).relu()


def resnet() -> nn.Module:
    torch.manual_seed(0)
    stem = (nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(*stem, Block(4, 4, 1), Block(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return ConvNet()


def mlp(**norm) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Linear(48, 8, bias=False)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(8, **norm), nn.Tanh(), nn.Linear(8, 3))


def federation(sizes=SIZES) -> fm.FederatedData:
    g = torch.Generator().manual_seed(1)

    def samples(n: int, shift: float):
        x = 1.5 * torch.randn(n, 3, 4, 4, generator=g, dtype=torch.float64) + shift
        return x, torch.randint(3, (n,), generator=g)

    return fm.FederatedData.from_arrays([samples(n, i / 2) for i, n in enumerate(sizes)], samples(20, 0.5))


def arguments(**changes):
    given = {
        "model": conv_net(),
        "data": federation(),
        "algorithm": fm.FedAvg(lr=0.1),
        "selection": fm.Uniform(m=3),
        "rounds": 3,
        "local_epochs": 2,
        "batch_size": 5,
        "dtype": torch.float64,
        "engine": "loop",
        "batchnorm": "local",
    }
    return given | changes


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: v.to(torch.float64) for name, v in module.named_buffers()}


class HandWritten:
    """FedAvg on whole clients' data, with a module per client whose BatchNorm layers are PyTorch's own, in training."""

    def __init__(self, model: nn.Module, data: fm.FederatedData, mode: str, steps: int, lr: float) -> None:
        self.server = copy.deepcopy(model).double()
        self.clients = [copy.deepcopy(self.server).train() for _ in range(len(data))]
        self.data, self.mode, self.steps, self.lr = data, mode, steps, lr
        norms = [m for m in self.server.modules() if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d)]
        own = {id(p) for norm in norms for p in norm.parameters()}
        self.kept = [name for name, p in self.server.named_parameters() if id(p) in own and mode == "local-affine"]

    def train(self, i: int) -> nn.Module:
        client, (x, y) = self.clients[i], self.data.client(i)
        with torch.no_grad():
            for name, p in client.named_parameters():
                if name not in self.kept:
                    p.copy_(self.server.get_parameter(name))
        for _ in range(self.steps):
            gradients = torch.autograd.grad(F.cross_entropy(client(x), y), list(client.parameters()))
            with torch.no_grad():
                for p, g in zip(client.parameters(), gradients, strict=True):
                    p -= self.lr * g
        return client

    def round(self, cohort: list[int], weights: list[float]) -> None:
        """Train a cohort, and average its models and its statistics."""
        trained = [self.train(i) for i in cohort]
        with torch.no_grad():
            for name, p in self.server.named_parameters():
                scale = sum(weights) if name in self.kept else 1  # these are averaged
                p.copy_(p + sum(w * (c.get_parameter(name) - p) for w, c in zip(weights, trained, strict=True)) / scale)
            for name, v in self.server.named_buffers():
                mean = sum(w * c.get_buffer(name) for w, c in zip(weights, trained, strict=True)) / sum(weights)
                v.copy_(mean if v.is_floating_point() else mean.round())
