"""FedSAM (Qu et al., ICML 2022): sharpness-aware local steps. The option `local=fm.local.SAM()` is shorter."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedSAM(fm.Algorithm):
    lr: float
    rho: float = 0.05

    def direction(self, y, s, c, grad, k):
        g = grad.raw(y)
        return grad.perturbed(y, self.rho * g / g.norm(dim=-1, keepdim=True).clamp(min=1e-30)), s


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedSAM(lr=0.1), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
