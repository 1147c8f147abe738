"""The check, in the first round of a run, that nothing draws from global random generators."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from ..algorithm import Algorithm
from ..codecs.codec import Codec
from ..codecs.compose import coding_of
from ..core.random_draws import drawing_function, refusal
from ..engine.backend import complete
from ..engine.local_backend import LocalBackend
from ..engine.round import server_step
from ..engine.round_record import make_timing
from ..engine.sampling import CohortSampler
from ..engine.state import FederatedState
from ..engine.training import train_clients
from ..engine.watch import GeneratorStates, T, draws_globally, watched
from ..local.compose import composed_optimizers
from ..local.optimizer import LocalOptimizer
from ..selection.selector import Selector


@contextmanager
def repeatable(state: FederatedState) -> Iterator[None]:
    """Refuse a run that draws from a global generator in this round, or whose model changes its buffers.

    The error names the method of the algorithm or the selector that draws, or else the model.
    """
    device, module = state.task.model.device, state.task.model.module

    def buffers() -> list[tuple[int, int]]:
        return [(id(b), b._version) for b in module.buffers()]

    t, before, held = state.t, GeneratorStates.now(device), buffers()
    yield
    used = before.changed(device)
    if used:
        _find_method(state, t)
    if "torch" in used:
        raise ValueError(refusal(_where(state)))
    if held != buffers():
        raise ValueError(
            "Cannot train the model because it changes its buffers in training (running statistics?), which clients "
            "would share; use layers without such buffers"
        )


def _where(state: FederatedState) -> str | None:
    """Return the function that draws and the module that calls it, if the model does."""
    model = state.task.model
    with suppress(Exception), torch.no_grad():  # the round of the run itself has succeeded
        found = drawing_function(lambda: state.task.trial(model.least_rows), model.module, model.device)
        if found is None:
            inputs, _ = state.task.samples(torch.arange(model.least_rows, device=model.device))
            with model.evaluation_mode():
                found = drawing_function(lambda: model(model.initial(), inputs), model.module, model.device)
        return found
    return None


def _find_method(state: FederatedState, t: int) -> None:
    """Play round t again without committing it, and raise an error that names the method that draws.

    Returns if none does: then the model draws or, in the case of NumPy's and Python's generators, another thread.
    """
    found: list[ValueError] = []
    with suppress(Exception):  # the round of the run itself has succeeded
        _repeat(state, t, found)
    for error in found:
        raise error


def _repeat(state: FederatedState, t: int, found: list[ValueError]) -> None:
    """Play round t and add an error to `found` for every method that draws, unless the model does."""
    backend, device = state.backend, state.task.model.device

    def watch(obj: T) -> T:
        def around(_: Any, method: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
            before = GeneratorStates.now(device)
            result = call(*args)
            owner, written = _owner(obj, method)
            found.extend(draws_globally(owner, written, used) for used in before.changed(device))
            return result

        return watched(obj, around)

    if not isinstance(backend, LocalBackend) or _model_draws(backend, state):
        return
    sampler = CohortSampler(state.task, backend, watch(state.sampler.selector), state.availability, state.clients.last)
    sampler.selection_state = state.sampler.selection_state
    repeated = copy.copy(state)
    repeated.t, repeated.sampler, repeated.algorithm = t, sampler, watch(state.algorithm)
    plan = replace(backend.executor.plan, cuda_graph=False)  # a capture does not allow to read generators
    repeated.backend = LocalBackend(
        state.task, repeated.algorithm, plan, clients=state.clients, clock=state.clock, policy=state.policy
    )
    with torch.no_grad():
        sampled = sampler.draw(t, state.x)
        training = complete(train_clients(repeated, sampled, make_timing(repeated, sampled)))
        complete(server_step(repeated, sampled, training))


def _owner(obj: Algorithm | Selector | LocalOptimizer | Codec, method: str) -> tuple[str, str]:
    """Return the class and the method that the user wrote; the step with a local optimiser is the optimiser's.

    Where uploads are coded, it is the algorithm or a codec.
    """
    if isinstance(obj, Algorithm) and method == "step" and (optimizers := composed_optimizers(obj)):
        return " or ".join(type(optimizer).__name__ for optimizer in optimizers), "update"
    if isinstance(obj, Algorithm) and method in ("prepare", "finish"):
        codecs = dict.fromkeys(type(vector.codec).__name__ for vector in coding_of(obj).up)
        return " or ".join([type(obj).__name__, *codecs]), f"{method}' or 'encode" if codecs else method
    return type(obj).__name__, method


def _model_draws(backend: LocalBackend, state: FederatedState) -> bool:
    """Whether a gradient of the model draws from PyTorch's generator."""
    before = GeneratorStates.now(state.task.model.device)
    with torch.no_grad():
        grad = backend.executor.gradient(torch.zeros(1, dtype=torch.int64), state.t)
        grad(grad.start(state.x))
    return "torch" in before.changed(state.task.model.device)
