"""An algorithm that uses every extension of the contract."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import fedmos as fm
from fedmos import rng


@dataclass(frozen=True, kw_only=True)
class Extended(fm.Algorithm):
    """Numbers, numbers per layer, pairs and rows; a starting point, random numbers, and models of its own."""

    lr: float
    noise: float = 1e-3

    server_state = ("ema", ("n", ()), ("l", "layers"), ("history", 2))
    client_state = ("y_i", ("count", ()), ("norms_i", "layers"), ("table", (2, 3)))
    down = ("z", ("n", ()), "l")
    up = ("delta", ("sq", ()), ("norms", "layers"), ("pair", 2))
    reduce = {
        "A": ("delta", "w"),
        "sq": ("sq", "avg"),
        "norms": ("norms", "avg/K"),
        "pair": ("pair", "p"),
        "rows": ("delta", "each"),
        "numbers": ("sq", "each"),
    }

    def init(self, x):
        return {"count": torch.ones(()).to(x), "ema": x, "table": torch.arange(6.0).view(2, 3).to(x)}

    def broadcast(self, x, state, ctx):
        return {"z": x + 0.1 * (x - state["ema"]), "n": state["n"], "l": state["l"]}

    def start(self, c):
        return c.msg["z"]

    def direction(self, y, s, c, grad, k):
        noise = self.noise * rng.normal(rng.fold(c.key, k), y.shape[-1]).to(y)
        return grad(y) + noise + 0.01 * c.layers.expand(c.msg["l"]) * (y - c.msg["z"]), s

    def finish(self, y, s, c, grad):
        delta = y - c.msg["z"]
        norms = torch.stack([v.flatten(delta.ndim - 1).norm(dim=-1) for v in c.layers.split(delta).values()], dim=-1)
        sq = delta.square().sum(-1, keepdim=True) / (1 + c.msg["n"])
        own = {"y_i": y, "count": c.own["count"] + 1, "norms_i": c.own["norms_i"] + norms, "table": 2 * c.own["table"]}
        return {"delta": delta, "sq": sq, "norms": norms, "pair": norms[..., :2]}, own

    def server(self, x, state, agg, ctx):
        assert agg["rows"].shape == (ctx.S, len(x))
        median = agg["rows"].median(dim=0).values
        x = x + 0.5 * agg["A"] + 0.5 * median + self.noise * rng.normal(ctx.key, len(x)).to(x)
        n = state["n"] + agg["sq"] + agg["numbers"].sum() + agg["pair"].sum()
        history = torch.stack([x, state["history"][0]])
        return x, {"ema": 0.5 * (state["ema"] + x), "n": n, "l": agg["norms"], "history": history}

    def evaluated(self, x, state, ctx):
        return state["ema"]

    def personal(self, c):
        return c.own["y_i"]
