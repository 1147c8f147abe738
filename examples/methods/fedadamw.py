"""FedAdamW (Liu et al., AAAI 2026): local AdamW with averaged second moments, pulled by the last global update."""

from dataclasses import dataclass

import torch

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedAdamW(fm.Algorithm):
    lr: float
    gamma: float = 0.5

    server_state = ("pull", ("v", "layers"))
    down = ("x", "pull", "v")
    up = ("delta", ("v", "layers"))  # the second moments as one mean per parameter tensor
    reduce = {"A": ("delta", "avg"), "v": ("v", "avg")}

    def begin(self, y, c, grad):
        return {"m": torch.zeros_like(y), "v": c.layers.expand(c.msg["v"]).expand_as(y)}

    def step(self, y, s, c, grad, k):
        g, t = grad(y), c.t * c.K + k + 1
        m, v = 0.9 * s["m"] + 0.1 * g, 0.999 * s["v"] + 0.001 * g * g
        d = m / (1 - 0.9 ** (k + 1)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8) + 0.01 * y
        return y - c.lr * d + self.gamma * c.msg["pull"] / c.K, {"m": m, "v": v}

    def finish(self, y, s, c, grad):
        parts = [v.reshape(*y.shape[:-1], -1).mean(-1) for v in c.layers.split(s["v"]).values()]
        return {"delta": y - c.x, "v": torch.stack(parts, -1)}, {}

    def server(self, x, state, agg, ctx):
        return x + agg["A"], {"pull": agg["A"], "v": agg["v"]}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedAdamW(lr=0.003), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
