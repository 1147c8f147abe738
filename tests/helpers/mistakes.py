"""Algorithms that make one mistake each, with a part of the sentence that names it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

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


class LostState(Mistake):
    server_state = ("v",)

    def server(self, x, state, agg, ctx):
        state["v"] = 0.9 * state["v"] + agg["A"]
        return x + state["v"], {}


class LostOwn(Mistake):
    client_state = ("h",)

    def finish(self, y, s, c, grad):
        c.own["h"] = c.own["h"] + y - c.x
        return {"delta": y - c.x}, {}


class NoSamples(Mistake):
    def begin(self, y, c, grad):
        return {"d": grad.batch(y, 0)}


class UnknownGradient(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad.ful(y), s


class InitInPlace(Mistake):
    server_state = ("v",)

    def init(self, x):
        return {"v": x.mul_(0.5)}


class NoMessage(Mistake):
    server_state = ("v",)
    down = ("x", "v")

    def broadcast(self, x, state, ctx):
        state["v"] * 2


REFUSED = {
    UnknownGradient: "UnknownGradient: there is no grad.ful; there are grad(y), grad.full, grad.batch, grad.raw",
    InitInPlace: "InitInPlace: 'init' must not change x in place",
    NoMessage: "NoMessage: 'broadcast' must return a dictionary of tensors by name, got None",
    NoSamples: "NoSamples: 'b' must be an integer ≥ 1, got 0",
    LostState: "LostState: 'server' must return 'v' because assigning state['v'] changes nothing",
    LostOwn: "LostOwn: 'finish' must return 'h' because assigning c.own['h'] changes nothing",
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
    InPlaceScratch: "InPlaceScratch: 'direction' must not change s['d'] in place",
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


class CohortNorm(Mistake):
    def direction(self, y, s, c, grad, k):
        g = grad(y)
        return g / g.norm(), s


class CohortMean(Mistake):
    def step(self, y, s, c, grad, k):
        g = grad(y)
        return y - c.lr * (g - g.mean()), s


class CohortSum(Mistake):
    def finish(self, y, s, c, grad):
        return {"delta": (y - c.x) / (1 + y.sum().abs())}, {}


class CohortScratch(Mistake):
    def begin(self, y, c, grad):
        return {"n": grad(y).norm()}

    def direction(self, y, s, c, grad, k):
        return grad(y) / (1 + s["n"]), s


class CohortPrepare(Mistake):
    server_state = ("g",)
    prepare_up = ("g",)
    prepare_reduce = {"g": ("g", "avg")}

    def prepare(self, c, grad):
        g = grad.full(c.x)
        return {"g": g - g.mean()}


class CohortState(Mistake):
    client_state = ("h",)

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, {"h": (y - c.x).clamp(max=y.mean())}


class NumberOfRows(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y) / (y.shape[0] if y.ndim == 2 else 1), s


class FirstRow(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y) + 0.1 * y[0], s


@dataclass(frozen=True, kw_only=True)
class KeepsInField(Mistake):
    memory: dict[str, Any] = field(default_factory=dict)

    def server(self, x, state, agg, ctx):
        m = self.memory.get("m", 0) * 0.9 + agg["A"]
        self.memory["m"] = m
        return x + m, {}


class KeepsOnSelf(Mistake):
    def finish(self, y, s, c, grad):
        object.__setattr__(self, "last_y", y)
        return {"delta": y - c.x}, {}


class KeepsOnClass(Mistake):
    count = [0]

    def server(self, x, state, agg, ctx):
        self.count[0] += 1
        return x + agg["A"] / self.count[0], {}


class OwnGenerator(Mistake):
    generator = torch.Generator().manual_seed(0)

    def direction(self, y, s, c, grad, k):
        return grad(y) + torch.randn(y.shape[-1], generator=self.generator, dtype=y.dtype), s


class Raising(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y)[7:] + y, s


class NotFinite(Mistake):
    def server(self, x, state, agg, ctx):
        return x + agg["A"] / 0, {}


class WrongEstimate(Mistake):
    def gradient_estimate(self, x, state, ctx, K):
        return x[:2]


class WrongIdle(Mistake):
    server_state = ("v",)

    def idle(self, x, state, ctx):
        return {"v": x[:2]}


class CohortDelivered(Mistake):
    client_state = ("h",)

    def delivered(self, upload, own, c):
        return upload, {"h": upload["delta"] / upload["delta"].norm()}


class CohortPersonal(Mistake):
    client_state = ("v",)

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, {"v": y}

    def personal(self, c):
        return c.own["v"] / c.own["v"].norm()


class PersonalNoise(Mistake):
    def personal(self, c):
        return c.x + torch.randn(c.x.shape[-1], dtype=c.x.dtype)


class Branching(Mistake):
    def direction(self, y, s, c, grad, k):
        return (grad(y) if k < c.K - 1 else 2 * grad(y)), s


class ReadsNumber(Mistake):
    def finish(self, y, s, c, grad):
        return {"delta": (y - c.x) / int(c.K)}, {}


class WrongRule(Mistake):
    reduce = {"A": ("delta", "median")}


class MisspeltMethod(Mistake):
    def direcion(self, y, s, c, grad, k):
        return 2 * grad(y), s


class MisspeltDeclaration(Mistake):
    server_sate = ("v",)


class MisspeltShortName(Mistake):
    upp = ("delta",)


class UnusedUpload(Mistake):
    up = ("delta", "y")

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "y": y}, {}


class UnusedPreparation(Mistake):
    prepare_up = (("n", ()),)

    def prepare(self, c, grad):
        return {"n": c.K}


FOUND = {
    MisspeltShortName: "MisspeltShortName: 'upp' has no meaning to fedmos and is ignored (did you mean 'up'?)",
    UnusedUpload: "UnusedUpload: 'reduce' must name the upload 'y' because nothing else uses it; add a sum",
    UnusedPreparation: "UnusedPreparation: 'prepare_reduce' must name the upload 'n' because nothing else uses it",
    CohortPersonal: "CohortPersonal: 'personal' must return for a client in a cohort what it returns for the client alone",
    PersonalNoise: "PersonalNoise: 'personal' must not draw from PyTorch's global generator",
    Branching: "Branching: 'direction' must not read the value of a tensor, by `if`, int(), float() or .item()",
    ReadsNumber: "ReadsNumber: 'finish' must not read the value of a tensor, by `if`, int(), float() or .item()",
    MisspeltMethod: "MisspeltMethod: 'direcion' has no meaning to fedmos and is ignored (did you mean 'direction'?)",
    MisspeltDeclaration: "MisspeltDeclaration: 'server_sate' has no meaning to fedmos and is ignored (did you mean 's",
    CohortNorm: "CohortNorm: 'direction' must return for a client in a cohort what it returns for the client alone, but "
    "direction differs",
    CohortMean: "CohortMean: 'step' must return for a client in a cohort what it returns for the client alone, but y",
    CohortSum: "CohortSum: 'finish' must return for a client in a cohort what it returns for the client alone, but "
    "upload['delta'] differs",
    CohortScratch: "CohortScratch: 'begin' must return for a client in a cohort what it returns for the client alone, "
    "but s['n'] differs",
    CohortPrepare: "CohortPrepare: 'prepare' must return for a client in a cohort what it returns for the client alone",
    CohortState: "CohortState: 'finish' must return for a client in a cohort what it returns for the client alone, but "
    "own['h'] differs",
    NumberOfRows: "NumberOfRows: 'direction' must return for a client in a cohort what it returns for the client alone",
    FirstRow: "FirstRow: 'direction' must return for a client in a cohort what it returns for the client alone",
    KeepsInField: "KeepsInField: 'server' must not keep values on self, got a new 'self.memory'",
    KeepsOnSelf: "KeepsOnSelf: 'finish' must not keep values on self, got a new 'self.last_y'",
    KeepsOnClass: "KeepsOnClass: 'server' must return the same for the same arguments, but a second call differs",
    OwnGenerator: "OwnGenerator: 'direction' must return the same for the same arguments, but a second call differs",
    Raising: "Raising: 'direction' raises RuntimeError: The size of tensor",
    NotFinite: "NotFinite: the run raises DivergenceError: The server's step in round 1 is not finite",
    WrongPersonal: "WrongPersonal: 'personal' must return a model of shape",
    WrongEstimate: "WrongEstimate: 'gradient_estimate' must return a model of shape",
    WrongIdle: "WrongIdle: 'idle' must return 'v' of shape",
    CohortDelivered: "CohortDelivered: 'delivered' must return for a client in a cohort what it returns for the client "
    "alone, but state 'h' of client 0 differs",
    WrongRule: "WrongRule: the rule of sum 'A' must be one of",
}
"""Mistakes that `fm.check` finds, and a run does not or not always."""
