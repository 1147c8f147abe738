"""FedACG (Kim et al., CVPR 2024): clients receive, and start from, the server's lookahead."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedACG(fm.Algorithm):
    lr: float
    lam: float = 0.85
    beta: float = 0.001

    server_state = ("m",)
    down = ("z",)  # in place of x

    def broadcast(self, x, state, ctx):
        return {"z": x + self.lam * state["m"]}

    def start(self, c):
        return c.msg["z"]

    def direction(self, y, s, c, grad, k):
        return grad(y) + self.beta * (y - c.msg["z"]), s

    def finish(self, y, s, c, grad):
        return {"delta": y - c.msg["z"]}, {}

    def server(self, x, state, agg, ctx):
        m = self.lam * state["m"] + agg["A"]
        return x + m, {"m": m}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedACG(lr=0.03), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
