"""FedSMOO (Sun et al., ICML 2023): FedSpeed whose perturbations agree between clients."""

from dataclasses import dataclass

import fedmos as fm


def unit(v):
    return v / v.norm(dim=-1, keepdim=True).clamp(min=1e-30)


@dataclass(frozen=True, kw_only=True)
class FedSMOO(fm.Algorithm):
    lr: float
    lam: float = 0.1
    rho: float = 0.05

    server_state = ("h", "s")
    client_state = ("h_i", "mu_i")
    down, up = ("x", "s"), ("delta", "mu_i")
    reduce = {"A": ("delta", "avg"), "P": ("delta", "p"), "mu": ("mu_i", "avg")}

    def begin(self, y, c, grad):
        return {"mu_i": c.own["mu_i"]}

    def direction(self, y, s, c, grad, k):
        e = self.rho * unit(grad.raw(y) - s["mu_i"] - c.msg["s"])
        d = grad.perturbed(y, e) + self.lam * (y - c.x + c.own["h_i"])
        return d, {"mu_i": s["mu_i"] + e - c.msg["s"]}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, **s}, {"h_i": c.own["h_i"] + y - c.x, **s}

    def server(self, x, state, agg, ctx):
        h = state["h"] + agg["P"]
        return x + agg["A"] + h, {"h": h, "s": self.rho * unit(agg["mu"])}


if __name__ == "__main__":
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=50, seed=0)
    result = fm.run(
        fm.models.cnn_digits(), data, FedSMOO(lr=0.03), fm.Uniform(m=10), rounds=50, local_steps=5, batch_size=8
    )
    print(f"accuracy {result.history[-1].accuracy:.3f}")
