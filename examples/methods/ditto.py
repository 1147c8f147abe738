"""Ditto (Li et al., ICML 2021): beside FedAvg, every client trains a model of its own near the server's."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class Ditto(fm.Algorithm):
    lr: float
    lam: float = 0.1

    client_state = ("own",)

    def init(self, x):
        return {"own": x}

    def begin(self, y, c, grad):
        return {"own": c.own["own"]}

    def direction(self, y, s, c, grad, k):
        own = s["own"] - c.lr * (grad(s["own"]) + self.lam * (s["own"] - c.x))
        return grad(y), {"own": own}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, s

    def personal(self, c):
        return c.own["own"]


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, Ditto(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
