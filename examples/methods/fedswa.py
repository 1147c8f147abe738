"""FedSWA (Liu et al., ICML 2025): the step size falls within the round, and the server extrapolates."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedSWA(fm.Algorithm):
    lr: float
    rho: float = 0.1
    alpha: float = 1.5

    def step(self, y, s, c, grad, k):
        return y - c.lr * (1 - (1 - self.rho) * k / c.K) * grad(y), s

    def server(self, x, state, agg, ctx):
        return x + self.alpha * agg["A"], {}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedSWA(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
