"""FedLin (Mitra et al., NeurIPS 2021): gradients corrected by the cohort's gradient at x, and step sizes η/K_i."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedLin(fm.Algorithm):
    lr: float

    server_state = ("g",)
    down = ("x", "g")
    prepare_up = ("gradient",)
    prepare_reduce = {"g": ("gradient", "avg")}

    def prepare(self, c, grad):
        return {"gradient": grad.full(c.x)}

    def begin(self, y, c, grad):
        return {"correction": c.msg["g"] - grad.full(c.x)}

    def direction(self, y, s, c, grad, k):
        return (grad(y) + s["correction"]) / c.K, s


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedLin(lr=0.5), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
