"""SCAFFOLD-M (Cheng et al., ICLR 2024): control variates with the momentum of FedAvg-M."""

from dataclasses import dataclass

import torch

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class ScaffoldM(fm.Algorithm):
    lr: float
    beta: float = 0.1

    server_state = ("m", "c")
    client_state = ("c_i",)
    down = ("x", "m", "c")
    up = ("delta", "change")
    reduce = {"A": ("delta", "w"), "step": ("delta", "avg/K"), "C": ("change", "p")}

    def begin(self, y, c, grad):
        return {"sum": torch.zeros_like(y)}

    def direction(self, y, s, c, grad, k):
        g = grad(y)
        d = self.beta * (g - c.own["c_i"] + c.msg["c"]) + (1 - self.beta) * c.msg["m"]
        return d, {"sum": s["sum"] + g}

    def finish(self, y, s, c, grad):
        c_i = s["sum"] / c.K
        return {"delta": y - c.x, "change": c_i - c.own["c_i"]}, {"c_i": c_i}

    def server(self, x, state, agg, ctx):
        return x + agg["A"], {"m": -agg["step"] / ctx.lr, "c": state["c"] + agg["C"]}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, ScaffoldM(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
