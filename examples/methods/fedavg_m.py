"""FedAvg-M (Cheng et al., ICLR 2024): the last round's mean direction in every local step."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedAvgMom(fm.Algorithm):
    lr: float
    beta: float = 0.1

    server_state = ("m",)
    down = ("x", "m")
    reduce = {"A": ("delta", "w"), "step": ("delta", "avg/K")}

    def direction(self, y, s, c, grad, k):
        return self.beta * grad(y) + (1 - self.beta) * c.msg["m"], s

    def server(self, x, state, agg, ctx):
        return x + agg["A"], {"m": -agg["step"] / ctx.lr}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedAvgMom(lr=0.3), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
