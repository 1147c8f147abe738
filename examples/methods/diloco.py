"""DiLoCo (Douillard et al., 2023): many local steps of AdamW, whose state each client keeps, and Nesterov outside."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class DiLoCo(fm.Algorithm):
    lr: float
    beta: float = 0.9
    server_lr: float = 0.7

    server_state = ("m",)
    client_state = ("first", "second", ("steps", ()))

    def begin(self, y, c, grad):
        return c.own

    def step(self, y, s, c, grad, k):
        g, t = grad(y), s["steps"] + 1
        first, second = 0.9 * s["first"] + 0.1 * g, 0.999 * s["second"] + 0.001 * g * g
        d = first / (1 - 0.9**t) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
        return y - c.lr * (d + 0.01 * y), {"first": first, "second": second, "steps": t}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, s

    def server(self, x, state, agg, ctx):
        m = self.beta * state["m"] + agg["A"]
        return x + self.server_lr * (agg["A"] + self.beta * m), {"m": m}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=8, seed=0)
    result = fm.run(fm.models.cnn_digits(), data, DiLoCo(lr=0.001), fm.Full(), rounds=10, local_steps=50, batch_size=8)
    print(f"accuracy {result.history[-1].accuracy:.3f}")
