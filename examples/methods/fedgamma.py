"""FedGamma (Dai et al., TNNLS 2023): SCAFFOLD with sharpness-aware gradients, as a subclass of `fm.Scaffold`."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedGamma(fm.Scaffold):
    rho: float = 0.05

    def direction(self, y, s, c, grad, k):
        g = grad.raw(y)
        e = self.rho * g / g.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        return grad.perturbed(y, e) - c.own["c_i"] + c.msg["c"], s


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedGamma(lr=0.03), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
