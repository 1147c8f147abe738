"""FedNova (Wang et al., NeurIPS 2020): updates per step, for clients with different numbers of steps."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedNova(fm.Algorithm):
    lr: float

    up = ("delta", ("tau", ()))  # a vector and a number
    reduce = {"step": ("delta", "avg/K"), "tau": ("tau", "w")}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "tau": c.K}, {}

    def server(self, x, state, agg, ctx):
        return x + agg["tau"] * agg["step"], {}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedNova(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
