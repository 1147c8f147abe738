"""A file of a user's own classes and functions, and a configuration that names them."""

MINE = """
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm


@dataclass(frozen=True)
class Half(fm.FedAvg):
    share: float = 0.5

    def step(self, y, s, c, grad, k):
        return y - self.share * c.lr * grad(y), s


class First(fm.Selector):
    def __init__(self, m):
        self.m = m

    def select(self, view):
        return torch.arange(self.m), torch.full((self.m,), 1 / self.m, dtype=torch.float64)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.body(x)


def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(6, 3)


def samples(n=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6)).astype("float32")
    return fm.Dataset("mine", x, np.argmax(x[:, :3], 1), x[:20], np.argmax(x[:20, :3], 1))


def federation(seed, clients=4):
    rng = np.random.default_rng(seed)
    parts = [(rng.normal(size=(10, 6)).astype("float32"), rng.integers(0, 3, 10)) for _ in range(clients)]
    return fm.FederatedData.from_arrays(parts, test=parts[0])


class Rows:
    def split(self, labels, clients, seed):
        return np.array_split(np.arange(len(labels)), clients)


def smooth(outputs, targets, smoothing=0.1):
    return F.cross_entropy(outputs, targets, label_smoothing=smoothing)


class Focal(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, outputs, targets):
        p = torch.softmax(outputs, 1)[torch.arange(len(targets)), targets]
        return -((1 - p) ** self.gamma * p.log()).mean()


def top2(outputs, targets):
    return (outputs.topk(2, 1).indices == targets[:, None]).any(1).double().mean()


class TopK(fm.metrics.Metric):
    name = "top_k"

    def __init__(self, k):
        object.__setattr__(self, "k", k)

    def __call__(self, outputs, targets):
        return (outputs.topk(self.k, 1).indices == targets[:, None]).any(1).double().mean()


def halving(t):
    return 0.5**t


class NoAlgorithm:
    lr = 0.1


NUMBER = 3
"""

RUN = {
    "rounds": 2,
    "local_steps": 1,
    "batch_size": 4,
    "data": {"name": "mine.py:samples", "clients": 4, "partition": {"name": "mine.py:Rows"}},
    "model": {"name": "mine.py:Net", "width": 5},
    "algorithm": {"name": "mine.py:Half", "lr": 0.1, "share": 0.25},
    "selection": {"name": "mine.py:First", "m": 2},
    "loss": "mine.py:smooth",
    "metrics": ["mine.py:top2", {"name": "mine.py:TopK", "k": 1}, "MacroF1"],
    "lr_decay": {"name": "mine.py:halving"},
    "target": {"top2": 1.01},
}
