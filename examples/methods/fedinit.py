"""FedInit (Sun et al., NeurIPS 2023): a client starts on the far side of its own last model."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedInit(fm.Algorithm):
    lr: float
    beta: float = 0.1

    client_state = ("y_i",)

    def init(self, x):
        return {"y_i": x}

    def start(self, c):
        return c.x + self.beta * (c.x - c.own["y_i"])

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, {"y_i": y}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedInit(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
