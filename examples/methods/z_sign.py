"""z-SignFedAvg (Tang et al., 2023): uploads are signs of noisy updates, whose mean is nearly unbiased."""

from dataclasses import dataclass

import torch

import fedmos as fm
from fedmos import rng


@dataclass(frozen=True, kw_only=True)
class ZSignFedAvg(fm.Algorithm):
    lr: float
    sigma: float = 0.05

    def finish(self, y, s, c, grad):
        delta = y - c.x
        noise = rng.normal(c.key, delta.shape[-1]).to(delta)
        return {"delta": (delta + self.sigma * noise).sign()}, {}

    def server(self, x, state, agg, ctx):
        return x + self.sigma * (torch.pi / 2) ** 0.5 * agg["A"], {}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, ZSignFedAvg(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
