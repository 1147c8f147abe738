"""Algorithms that make one mistake each, with a part of the sentence that names it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class Mistake(fm.Algorithm):
    lr: float = 0.1


class OneTensor(Mistake):
    def step(self, y, s, c, grad, k):
        return y - c.lr * grad(y)


class OneDirection(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y)


class UploadOnly(Mistake):
    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}


class ModelOnly(Mistake):
    def server(self, x, state, agg, ctx):
        return x + agg["A"]


class MissingSum(Mistake):
    def server(self, x, state, agg, ctx):
        return x + agg["B"], {}


class UndeclaredOwn(Mistake):
    client_state = ("h_i",)

    def direction(self, y, s, c, grad, k):
        return grad(y) - c.own["h"], s


class UndeclaredState(Mistake):
    server_state = ("v",)

    def server(self, x, state, agg, ctx):
        return x + agg["A"] + state["m"], {}


class UndeclaredMessage(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y) + c.msg["D"], s


class MessageX(Mistake):
    def finish(self, y, s, c, grad):
        return {"delta": y - c.msg["x"]}, {}


class MessageTooEarly(Mistake):
    server_state = ("c",)
    down = ("x", "c")
    prepare_up = ("g",)
    prepare_reduce = {"c": ("g", "avg")}

    def prepare(self, c, grad):
        return {"g": grad.full(c.x) + c.msg["c"]}


class UnknownScratch(Mistake):
    def begin(self, y, c, grad):
        return {"d_0": grad(y)}

    def direction(self, y, s, c, grad, k):
        return grad(y) - s["d"], s


class ClientNumber(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y) * c.id, s


class ServerNumber(Mistake):
    def server(self, x, state, agg, ctx):
        return x + agg["A"] / ctx.K, {}


class InPlace(Mistake):
    def step(self, y, s, c, grad, k):
        y -= c.lr * grad(y)
        return y, s


class InPlaceLater(Mistake):
    """The first step makes a tensor of its own, into which the second writes."""

    def step(self, y, s, c, grad, k):
        if k == 0:
            return y - c.lr * grad(y), s
        y -= c.lr * grad(y)
        return y, s


class InPlaceScratch(Mistake):
    def begin(self, y, c, grad):
        return {"d": 0 * grad(y)}

    def direction(self, y, s, c, grad, k):
        return s["d"].add_(grad(y)), s


class InPlaceOwn(Mistake):
    client_state = ("h",)

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, {"h": c.own["h"].add_(y)}


class InPlaceMessage(Mistake):
    server_state = ("m",)
    down = ("x", "m")

    def direction(self, y, s, c, grad, k):
        c.msg["m"].mul_(0.5)
        return grad(y), s


class InPlaceServer(Mistake):
    server_state = ("v",)

    def server(self, x, state, agg, ctx):
        state["v"] += agg["A"]
        return x + state["v"], {"v": state["v"]}


class InPlaceModel(Mistake):
    def server(self, x, state, agg, ctx):
        return x.add_(agg["A"]), {}


class TorchNoise(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y) + 0.01 * torch.randn(y.shape[-1], dtype=y.dtype), s


class NumpyNoise(Mistake):
    def server(self, x, state, agg, ctx):
        return x + agg["A"] * np.random.rand(), {}  # noqa: NPY002


class PythonNoise(Mistake):
    def finish(self, y, s, c, grad):
        return {"delta": (y - c.x) * random.random()}, {}


class NoiseInInit(Mistake):
    server_state = ("v",)

    def init(self, x):
        return {"v": torch.randn_like(x)}


class WithoutAxis(Mistake):
    up = ("delta", ("n", ()))
    reduce = {"A": ("delta", "w"), "n": ("n", "w")}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "n": (y - c.x).norm()}, {}


class MisspeltInit(Mistake):
    server_state = ("momentum",)

    def init(self, x):
        return {"momentun": x}


class WithoutX(Mistake):
    server_state = ("m",)
    down = ("m",)


class WrongBegin(Mistake):
    def begin(self, y, c, grad):
        return grad(y)


class WrongStart(Mistake):
    def start(self, c):
        return c.x.sum()


class WrongDirection(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y).norm(dim=-1, keepdim=True), s


class WrongState(Mistake):
    server_state = (("tau", ()),)

    def server(self, x, state, agg, ctx):
        return x + agg["A"], {"tau": agg["A"]}


class WrongMessage(Mistake):
    down = ("x", ("tau", "layers"))

    def broadcast(self, x, state, ctx):
        return {"tau": x}


class WrongEvaluated(Mistake):
    def evaluated(self, x, state, ctx):
        return x[None]


class WrongPersonal(Mistake):
    def personal(self, c):
        return c.x[:1]


REFUSED = {
    OneTensor: "OneTensor: 'step' must return a tensor and a dictionary of tensors, got a tensor of shape",
    OneDirection: "OneDirection: 'direction' must return a tensor and a dictionary of tensors, got a tensor of shape",
    UploadOnly: "UploadOnly: 'finish' must return uploads, a dictionary, and a dictionary of tensors, got a dict",
    ModelOnly: "ModelOnly: 'server' must return the model and a dictionary of tensors, got a tensor of shape",
    MissingSum: "MissingSum: there is no agg['B']; 'reduce' declares A",
    UndeclaredOwn: "UndeclaredOwn: there is no c.own['h']; 'client_state' declares h_i",
    UndeclaredState: "UndeclaredState: there is no state['m']; 'server_state' declares v",
    UndeclaredMessage: "UndeclaredMessage: there is no c.msg['D']; 'down' declares nothing",
    MessageX: "MessageX: there is no c.msg['x']; use c.x",
    MessageTooEarly: "MessageTooEarly: there is no c.msg['c']; in the extra phase",
    UnknownScratch: "UnknownScratch: there is no s['d']; 'begin' or the previous step returned d_0",
    ClientNumber: "ClientNumber: there is no c.id; a client knows t, lr, N, S, W, layers, key, x, msg, own, K, p, last",
    ServerNumber: "ServerNumber: there is no ctx.K; the server knows t, lr, N, S, W, layers, key",
    InPlace: "InPlace: 'step' must not change",
    InPlaceLater: "InPlaceLater: 'step' must not change y in place",
    InPlaceScratch: "InPlaceScratch: 'direction' must not change a tensor of s in place",
    InPlaceOwn: "must not change c.own['h'] in place",
    InPlaceMessage: "must not change c.msg['m'] in place",
    InPlaceServer: "InPlaceServer: 'server' must not change state['v'] in place",
    InPlaceModel: "InPlaceModel: 'server' must not change x in place",
    TorchNoise: "TorchNoise: 'direction' must not draw from PyTorch's global generator",
    NumpyNoise: "NumpyNoise: 'server' must not draw from NumPy's global generator",
    PythonNoise: "PythonNoise: 'finish' must not draw from Python's global generator",
    NoiseInInit: "NoiseInInit: 'init' must not draw from PyTorch's global generator",
    WithoutAxis: "WithoutAxis: 'finish' must return 'n' of shape",
    MisspeltInit: "MisspeltInit: 'init' must return declared state (momentum), got momentun (did you mean 'momentum'?)",
    WithoutX: "WithoutX: 'down' must name x because a method for clients reads c.x",
    WrongBegin: "WrongBegin: 'begin' must return a dictionary of tensors by name, got a tensor of shape",
    WrongStart: "WrongStart: 'start' must return a model of shape",
    WrongDirection: "WrongDirection: 'direction' must return a direction of shape",
    WrongState: "WrongState: 'server' must return 'tau' of shape (), got a tensor of shape",
    WrongMessage: "WrongMessage: 'broadcast' must return 'tau' of shape",
    WrongEvaluated: "WrongEvaluated: 'evaluated' must return a model of shape",
}
"""Mistakes that a run refuses, on every engine."""
