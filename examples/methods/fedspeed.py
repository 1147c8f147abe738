"""FedSpeed (Sun et al., ICLR 2023): sharpness-aware gradients and a correction that each client keeps."""

from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedSpeed(fm.Algorithm):
    lr: float
    lam: float = 0.1
    rho: float = 0.05

    server_state = ("h",)  # Σ p_i h_i over all clients
    client_state = ("h_i",)
    reduce = {"A": ("delta", "avg"), "P": ("delta", "p")}

    def direction(self, y, s, c, grad, k):
        g = grad.raw(y)
        e = self.rho * g / g.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        return grad.perturbed(y, e) + self.lam * (y - c.x + c.own["h_i"]), s

    def finish(self, y, s, c, grad):
        delta = y - c.x
        return {"delta": delta}, {"h_i": c.own["h_i"] + delta}

    def server(self, x, state, agg, ctx):
        h = state["h"] + agg["P"]
        return x + agg["A"] + h, {"h": h}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedSpeed(lr=0.03), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
