"""Selectors and local optimisers that make one mistake each, with a part of the sentence that names it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class First(fm.Selector):
    """The first m clients."""

    m: int = 3

    def select(self, view):
        ids = torch.arange(min(self.m, view.N))
        return ids, torch.full((len(ids),), 1 / len(ids))


class OutOfRange(First):
    def select(self, view):
        return [view.N], [1.0]


class NegativeWeight(First):
    def select(self, view):
        return [0], [-0.1]


class ZeroWeights(First):
    def select(self, view):
        return [0], [0.0]


class IdsOnly(First):
    def select(self, view):
        return [0]


class MoreThanM(First):
    def select(self, view):
        return torch.arange(view.N), view.p


class ManyNeeded(First):
    def select(self, view):
        return view.n.topk(self.m).indices, torch.full((self.m,), 1 / self.m)


class TorchDraw(First):
    def select(self, view):
        return torch.randperm(view.N)[: self.m], torch.ones(min(view.N, self.m))


class PythonDraw(First):
    def select(self, view):
        return [random.randrange(view.N)], [1.0]


class OwnDraw(First):
    generator = torch.Generator().manual_seed(0)

    def select(self, view):
        return torch.randperm(view.N, generator=self.generator)[:1], [1.0]


@dataclass(frozen=True, kw_only=True)
class KeepsTurn(First):
    turn: list[int] = field(default_factory=lambda: [0])

    def select(self, view):
        self.turn[0] += 1
        return [self.turn[0] % view.N], [1.0]


class UndeclaredTurn(First):
    def select(self, view):
        view.state["turn"] = view.state.get("turn", torch.tensor(0)) + 1
        return (view.state["turn"] % view.N).view(1), [1.0]


class WritesView(First):
    def select(self, view):
        view.n.clamp_(max=5)
        return super().select(view)


class UnknownReport(First):
    reports = ("lose",)


class NotAhead(First):
    """Claims that cohorts can be drawn in advance, but goes by the rounds that clients took part in."""

    prefetchable = True

    def select(self, view):
        least = torch.zeros(view.N) if view.picks is None else view.picks
        ids = least.argsort(stable=True)[: self.m]
        return ids, torch.full((len(ids),), 1 / len(ids))


class ProbesAhead(First):
    prefetchable = True

    def select(self, view):
        ids = view.probe(torch.arange(view.N)).argsort(stable=True)[: self.m]
        return ids, torch.full((len(ids),), 1 / len(ids))


class OtherAhead(First):
    prefetchable = True

    def select(self, view):
        return super().select(view)

    def select_ahead(self, view, rounds):
        ids = torch.arange(self.m).flip(0).expand(len(rounds), -1)
        return ids, torch.full(ids.shape, 1 / self.m)


class DrawsInThin(First):
    reports = ("update_norm",)

    def thin(self, view, reports):
        return view.cohort[torch.rand(len(view.cohort)) >= 0], view.weights


class ThinsOthers(First):
    reports = ("update_norm",)

    def thin(self, view, reports):
        return [view.N - 1], [1.0]


class UndeclaredReport(First):
    def select(self, view):
        return view.reported["loss"].argsort()[: self.m], torch.ones(self.m)


class UndeclaredState(First):
    def select(self, view):
        return view.state["order"][: self.m], torch.ones(self.m)


class UnsetState(First):
    state = ("order",)

    def select(self, view):
        return view.state["order"][: self.m], torch.ones(self.m)


class SilentUpdates(First):
    """Without the declaration nobody has ever sent an update, it seems."""

    def select(self, view):
        return super().select(view) if not view.updates else (torch.tensor(list(view.updates)), torch.ones(1))


class MisspeltReports(First):
    report = ("loss",)


SELECTORS: dict[type[First], str] = {
    UndeclaredReport: "UndeclaredReport: there is no view.reported['loss']; 'reports' declares nothing",
    UndeclaredState: "UndeclaredState: there is no view.state['order']; 'state' declares nothing",
    UnsetState: "UnsetState: there is no view.state['order'] yet, because state starts empty",
    SilentUpdates: "SilentUpdates: there is no view.updates because the server stores them only for selectors that",
    MisspeltReports: "MisspeltReports: 'report' has no meaning to fedmos and is ignored (did you mean 'reports'?)",
    OutOfRange: "OutOfRange: 'select' must return client numbers from 0 to 9, got [10]",
    NegativeWeight: "NegativeWeight: 'select' must return a weight ≥ 0 for each client",
    ZeroWeights: "ZeroWeights: 'select' must return weights of which some are > 0",
    IdsOnly: "IdsOnly: 'select' must return client numbers and their weights",
    MoreThanM: "MoreThanM: 'select' must return at most m = 3 clients, got 10",
    ManyNeeded: "ManyNeeded: 'select' raises RuntimeError: selected index k out of range",
    TorchDraw: "TorchDraw: 'select' must not draw from PyTorch's global generator",
    PythonDraw: "PythonDraw: 'select' must not draw from Python's global generator",
    OwnDraw: "OwnDraw: 'select' must return the same for the same arguments, but a second call differs",
    KeepsTurn: "KeepsTurn: 'select' must not keep values on self, got a new 'self.turn'",
    UndeclaredTurn: "UndeclaredTurn: 'state' must name turn",
    WritesView: "WritesView: 'select' must not change view.n in place",
    UnknownReport: "UnknownReport: 'reports' must be of",
    NotAhead: "NotAhead: 'prefetchable' must be False because 'select' uses more of the view than seed, round, p and n",
    ProbesAhead: "ProbesAhead: 'prefetchable' must be False because 'select' uses more of the view than seed, round",
    OtherAhead: "OtherAhead: 'select_ahead' must return the rows that 'select' returns round by round",
    DrawsInThin: "DrawsInThin: 'thin' must not draw from PyTorch's global generator",
    ThinsOthers: "ThinsOthers: 'thin' must return",
}


class CohortScale(fm.local.LocalOptimizer):
    def update(self, d, y, s, lr, layers):
        return d / d.norm(), s


class WritesDirection(fm.local.LocalOptimizer):
    def update(self, d, y, s, lr, layers):
        return d.mul_(2), s


class DrawsNoise(fm.local.LocalOptimizer):
    def update(self, d, y, s, lr, layers):
        return d + 0.01 * torch.randn(d.shape[-1], dtype=d.dtype), s


@dataclass(frozen=True, kw_only=True)
class KeepsMomentum(fm.local.LocalOptimizer):
    def update(self, d, y, s, lr, layers):
        object.__setattr__(self, "moment", d)
        return d, s


class WrongShape(fm.local.LocalOptimizer):
    state = (("n", ()),)

    def update(self, d, y, s, lr, layers):
        return d, {"n": d}


LOCAL: dict[type[Any], str] = {
    CohortScale: "CohortScale: 'update' must compute for a client in a cohort what is computed for the client alone",
    WritesDirection: "WritesDirection: 'update' must not change d in place",
    DrawsNoise: "DrawsNoise: 'update' must not draw from PyTorch's global generator",
    KeepsMomentum: "KeepsMomentum: 'update' must not keep values on self, got a new 'self.moment'",
    WrongShape: "WrongShape: 'update' must return",
}
