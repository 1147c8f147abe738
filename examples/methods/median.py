"""Coordinate-wise median (Yin et al., ICML 2018): faulty clients cannot move the model far."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class Median(fm.Algorithm):
    lr: float

    reduce = {"rows": ("delta", "each")}  # (S, D): a row per client

    def server(self, x, state, agg, ctx):
        return x + agg["rows"].quantile(0.5, dim=0), {}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, Median(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
