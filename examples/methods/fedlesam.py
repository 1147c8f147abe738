"""FedLESAM (Fan et al., ICML 2024): perturbed along the move of the server's model since the client's last round."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedLESAM(fm.Algorithm):
    lr: float
    rho: float = 0.05

    client_state = ("x_old",)

    def init(self, x):
        return {"x_old": x}

    def direction(self, y, s, c, grad, k):
        move = c.own["x_old"] - c.x
        return grad.perturbed(y, self.rho * move / move.norm(dim=-1, keepdim=True).clamp(min=1e-30)), s

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, {"x_old": c.x}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedLESAM(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
