"""FedExP (Jhunjhunwala et al., ICLR 2023): an extrapolated server step, and the mean of two iterates as result."""

from dataclasses import dataclass

import torch

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedExP(fm.Algorithm):
    lr: float
    eps: float = 0.001

    server_state = ("x_prev",)
    up = ("delta", ("norm2", ()))
    reduce = {"A": ("delta", "avg"), "q": ("norm2", "avg")}

    def init(self, x):
        return {"x_prev": x}

    def finish(self, y, s, c, grad):
        delta = y - c.x
        return {"delta": delta, "norm2": delta.square().sum(-1, keepdim=True)}, {}

    def server(self, x, state, agg, ctx):
        server_lr = torch.clamp(agg["q"] / (2 * (agg["A"].square().sum() + self.eps)), min=1)
        return x + server_lr * agg["A"], {"x_prev": x}

    def evaluated(self, x, state, ctx):
        return (x + state["x_prev"]) / 2


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedExP(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
