"""Composition of an algorithm with parameters that stay with the clients (FedPer, FedRep, LG-FedAvg).

The algorithm works on the shared parameters alone: its vectors have their size, and so do messages, codes, noise and
sums. The personal parameters are state of each client. Every gradient is taken at both together; the algorithm gets the
shared part. The personal part is the direction of the personal parameters, v ← v − η g, or what the local optimisers
make of it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Layers, Vectors
from ..core.composition import is_pair, recast, subclass, without
from ..core.method_checks import check_direction, check_pair, unchanged
from ..core.personal_parameters import PERSONAL, Personal, personal_names
from .compose import OptimizerLink, chain_of

_PREFIX = f"{PERSONAL}."
"""The names of the local optimisers' state of these parameters begin with this."""


@dataclass(frozen=True)
class PersonalPart:
    """The parameters of a model that clients keep, and when they train them."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Their names and shapes."""
    steps: int
    """The first so many steps of a round train only these parameters, and the others only the rest; 0 for all both."""
    factor: float
    """K/(K − steps): what a mean over K_i steps of shared parameters must be multiplied by."""
    digest: str
    """A hash of the initial values."""
    initial: Tensor = field(compare=False, repr=False)
    layers: Layers = field(compare=False, repr=False)

    @classmethod
    def of(cls, model: nn.Module, personal: Personal, local_steps: int | None) -> PersonalPart:
        """Return the part of a model that clients keep."""
        names = personal_names(model, personal)
        parameters = {name: p.detach() for name, p in model.named_parameters() if name in names}
        initial = torch.cat([p.reshape(-1) for p in parameters.values()]).cpu()
        shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        steps = personal.steps or 0
        digest = hashlib.sha256(initial.to(torch.float64).numpy().tobytes()).hexdigest()
        factor = local_steps / (local_steps - steps) if local_steps and steps else 1.0
        return cls(tuple(shapes.items()), steps, factor, digest, initial, Layers(shapes))


def with_personal(algorithm: Algorithm, model: nn.Module, personal: Personal | None, steps: int | None) -> Algorithm:
    """Return the algorithm with parameters that stay with the clients.

    The result has the class name and the fields of the algorithm, and also declares these parameters as client state.

    Args:
        algorithm: The algorithm, composed with local optimisers.
        model: The model, with the initial values of the parameters.
        personal: The option `personal`.
        steps: The number of local steps, if it is the same for all clients.

    Raises:
        ValueError: If the parameters do not suit the model, or `personal.steps` the local steps.
    """
    if personal is None:
        return algorithm
    if personal.steps is not None and steps is None:
        raise ValueError(
            f"Cannot use personal=Personal(..., steps={personal.steps}) with local_epochs because the number of local "
            "steps then depends on the client; use local_steps"
        )
    if personal.steps is not None and steps is not None and personal.steps >= steps:
        raise ValueError(
            f"Personal: 'steps' must be < local_steps ({steps}), so that the shared parameters are trained, too, got "
            f"{personal.steps}"
        )
    part = PersonalPart.of(model, personal, steps)
    return recast(algorithm, _personal_class(type(algorithm), part))  # type: ignore[arg-type]  # a class is hashable


@cache
def _personal_class(kind: type[Algorithm], part: PersonalPart) -> type[Algorithm]:
    """Return a subclass of `kind` with these parameters: one for all runs that have them, so that runs can merge."""
    chain = tuple(OptimizerLink(link.optimizer, _PREFIX + link.prefix) for link in chain_of(kind))
    return subclass(kind, _WithPersonal, _personal_part=part, _personal_chain=chain, _personal_base=kind)


class _PersonalGradient:
    """The gradients of the shared parameters, at the client's own values of the others."""

    def __init__(self, grad: Gradient, v: Tensor, at: Tensor | None = None) -> None:
        self._grad, self._v, self._at = grad, v, at
        self.own: Tensor | None = None
        """The personal part of the last gradient of the step at the client's current model."""

    def __getattr__(self, name: str) -> Any:
        """Return what is no gradient; an unknown name is the error that it is without personal parameters."""
        return getattr(self._grad, name)

    def __call__(self, y: Tensor) -> Tensor:
        return self._shared(y, self._grad(self._joined(y)), note=True)

    def full(self, y: Tensor) -> Tensor:
        return self._shared(y, self._grad.full(self._joined(y)))

    def batch(self, y: Tensor, b: int) -> Tensor:
        return self._shared(y, self._grad.batch(self._joined(y), b))

    def raw(self, y: Tensor) -> Tensor:
        return self._shared(y, self._grad.raw(self._joined(y)))

    def perturbed(self, y: Tensor, e: Tensor) -> Tensor:
        e = join(e, torch.zeros_like(self._v))
        return self._shared(y, self._grad.perturbed(self._joined(y), e), note=True)

    def _joined(self, y: Tensor) -> Tensor:
        return join(y, self._v)

    def _shared(self, y: Tensor, g: Tensor, note: bool = False) -> Tensor:
        D = y.shape[-1]
        if note and y is self._at:
            self.own = g[..., D:]
        return g[..., :D]


class _WithPersonal(Algorithm):
    """The methods and declarations in which an algorithm with personal parameters differs from the algorithm alone."""

    _personal_part: ClassVar[PersonalPart]
    _personal_chain: ClassVar[tuple[OptimizerLink, ...]]
    """The local optimisers, with the names of their state of these parameters."""
    _personal_base: ClassVar[type[Algorithm]]
    """The class of the algorithm alone."""

    @property
    def client_state(self) -> Sequence[Field]:
        kept = [(name, self._personal_shape(shape)) for name, shape in self._personal_kept()]
        return (*self._personal_alone().client_state, (PERSONAL, (self._personal_part.layers.size,)), *kept)

    def init(self, x: Tensor) -> Vectors:
        return super().init(x) | {PERSONAL: self._personal_part.initial.to(x)}

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        return super().prepare(self._personal_context(c), _PersonalGradient(grad, c.own[PERSONAL]))

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        v = c.own[PERSONAL]
        s = super().begin(y, self._personal_context(c), _PersonalGradient(grad, v))
        if not isinstance(s, dict):
            return s  # the engine refuses it
        s = s | {PERSONAL: v}
        for link in self._personal_chain:
            s = s | link.initial(v, self._personal_part.layers, c.own if link.stored else None)
        return s

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        part, v = self._personal_part, s[PERSONAL]
        own = {name: value for name, value in s.items() if name == PERSONAL or name.startswith(_PREFIX)}
        if k < part.steps:
            return y, s | self._personal_step(grad(join(y, v))[..., y.shape[-1] :], v, s, c)
        shared = _PersonalGradient(grad, v, y)
        alone = without(s, _PREFIX, PERSONAL)
        got = self._personal_shared_step(y, alone, self._personal_context(c), shared, k - part.steps)
        if not is_pair(got):
            return got  # type: ignore[no-any-return]  # the engine refuses it
        if part.steps:
            return got[0], got[1] | own
        g = grad(join(y, v))[..., y.shape[-1] :] if shared.own is None else shared.own
        return got[0], got[1] | own | self._personal_step(g, v, s, c)

    def _personal_shared_step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> Any:
        """Perform the algorithm's own step; errors name `direction` where the algorithm defines that."""
        if self._personal_base.step is not Algorithm.step:
            return super().step(y, s, c, grad, k)
        with unchanged(self, "direction", {"y": y, "s": s}):
            got: Any = self.direction(y, s, c, grad, k)
        check_pair(self, "direction", got)
        check_direction(self, got[0], y)
        return y - c.lr * got[0], got[1]

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        v = s[PERSONAL]
        got: Any = super().finish(
            y, without(s, _PREFIX, PERSONAL), self._personal_context(c), _PersonalGradient(grad, v)
        )
        if not is_pair(got):
            return got  # type: ignore[no-any-return]  # the engine refuses it
        return got[0], got[1] | {PERSONAL: v} | {name: s[name] for name, _ in self._personal_kept()}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        if self._personal_part.steps:  # means over K_i steps are over those of the shared parameters
            agg = copy.copy(agg)
            for name, (_, rule) in self._personal_alone().reduce.items():
                if rule == "avg/K":
                    agg[name] = self._personal_part.factor * agg[name]
        return super().server(x, state, agg, ctx)

    def personal(self, c: ClientContext) -> Tensor | None:
        own = super().personal(c)
        return join(c.x if own is None else own, c.own[PERSONAL])

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return super().gradient_estimate(x, state, ctx, K - self._personal_part.steps)

    def _personal_step(self, d: Tensor, v: Tensor, s: Vectors, c: ClientContext) -> Vectors:
        """Return the personal parameters after a step along d, and the new state of their optimisers."""
        new: Vectors = {}
        for link in self._personal_chain:
            d, state = link.update(d, v, s, c.lr, self._personal_part.layers)
            new |= state
        return new | {PERSONAL: v - c.lr * d}

    def _personal_context(self, c: ClientContext) -> ClientContext:
        """Return the context with the number of steps in which shared parameters are trained."""
        if not self._personal_part.steps:
            return c
        changed = object.__new__(type(c))  # copy.copy reads attributes that the engine's class does not have
        vars(changed).update(vars(c))
        object.__setattr__(changed, "K", c.K - self._personal_part.steps)
        return changed

    def _personal_kept(self) -> list[tuple[str, Any]]:
        """Return the names and shapes of the optimisers' state that clients keep: averages cannot be taken of it."""
        return [pair for link in self._personal_chain if link.stored for pair in link.fields]

    def _personal_shape(self, shape: Any) -> Any:
        """Return a declared shape in numbers, since "D" and "layers" mean the shared parameters."""
        layers = self._personal_part.layers
        return (len(layers),) if shape == "layers" else tuple(layers.size if n == "D" else n for n in shape)

    def _personal_alone(self) -> Algorithm:
        """Return the algorithm alone. Its declarations may depend on each other."""
        return recast(self, self._personal_base)


def join(y: Tensor, v: Tensor) -> Tensor:
    """Return shared and personal parameters as one vector, (…, D + P)."""
    rows = torch.broadcast_shapes(y.shape[:-1], v.shape[:-1])
    return torch.cat([y.expand(*rows, -1), v.expand(*rows, -1)], dim=-1)
