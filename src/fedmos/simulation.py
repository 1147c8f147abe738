"""`fm.run`: one federated training run from arguments to result."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from . import __version__
from .algorithm import Algorithm
from .callbacks import Callback, Progress
from .data.federated import FederatedData
from .engine import choose_plan
from .engine.fitness import check_fit, repeatable
from .engine.rounds import Decay, DivergenceError, Simulation, check_declaration
from .engine.task import Task, on_device
from .history import METRICS, Record, reached
from .losses import Loss, LossFunction
from .params import FlatModel
from .precision import Precision, arithmetic
from .result import Result, may_hold_result
from .selection.availability import Availability
from .selection.selector import Selector
from .system import System
from .validate import Rule, boolean, count, integer, non_negative, none, number, one_of, positive, require, suggest

_DTYPES = (torch.float32, torch.float64)


def run(
    model: nn.Module,
    data: FederatedData,
    algorithm: Algorithm,
    selection: Selector,
    *,
    rounds: int,
    local_steps: int | None = None,
    local_epochs: int | None = None,
    batch_size: int | None = None,
    loss: str | LossFunction = "cross_entropy",
    lr_decay: Decay = 1.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    eval_every: int = 1,
    target: Mapping[str, float] | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    dtype: torch.dtype = torch.float32,
    precision: Precision = None,
    engine: Literal["auto", "loop", "batched"] = "auto",
    availability: Availability | None = None,
    system: System | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    on_bad_update: Literal["stop", "drop"] = "stop",
    callbacks: Sequence[Callback | Callable[[Record], Any]] = (),
) -> Result:
    """Train `model` over the clients of `data`, and return what came of it.

    Args:
        model: any module without BatchNorm. The run starts from its weights and leaves it untouched.
        data: the federation, from `fm.datasets.load(...).partition(...)` or `FederatedData.from_arrays`.
        algorithm: what clients and server do, e.g. `fm.FedMoS(lr=0.01)`.
        selection: who takes part in a round, e.g. `fm.ACS(m=25)`.
        rounds: how many rounds to play at most.
        local_steps, local_epochs: local work per round; give exactly one.
        batch_size: samples per step; None takes all local data, which leaves only selection to chance.
        loss: "cross_entropy", "mse", "bce", or a callable (outputs, targets) → mean over the batch.
        lr_decay: a factor per round, or factors by the round (from 0) that they apply from: `{150: .5}`.
        weight_decay, clip: every gradient becomes clip(g) + weight_decay · y, clipped to that norm.
        eval_every: evaluate after every so many rounds (and after the last).
        target: metrics to reach, e.g. `{"accuracy": 0.95}`; the run ends when all are.
        seed: decides every random number of the run.
        device: "auto" (CUDA if there is any), or a device.
        dtype: torch.float32 or torch.float64.
        precision: None for arithmetic of the dtype's own; "tf32" (GPU) or "bf16" for faster, less exact products.
        engine: "loop" (the plain reference), "batched" (the cohort as one program), or "auto".
        availability: who is there in which round, e.g. `fm.Alternating()`; None for everyone.
        system: a simulated clock with deadlines, e.g. `fm.System(deadline=60, over_select=1.3)`; None for none.
        out: a folder for the result, written at the end and at every checkpoint.
        resume: continue the run in `out`; start anew if there is none, return the result if it is finished.
        checkpoint_every: save in `out` after every so many rounds.
        on_bad_update: at an update that is not finite, "stop" (DivergenceError) or "drop" the client for the round.
        callbacks: `Callback` objects, or functions of a round's record.

    Ctrl-C ends the run after the last complete round; the result says `interrupted`.
    """
    _check_kinds(model=model, data=data, algorithm=algorithm, selection=selection)
    _check_kinds(**{k: v for k, v in (("availability", availability), ("system", system)) if v is not None})
    _check_settings(locals())
    rounds, eval_every, seed, weight_decay = int(rounds), int(eval_every), int(seed), float(weight_decay)
    local_steps, local_epochs, batch_size, checkpoint_every = (
        None if v is None else int(v) for v in (local_steps, local_epochs, batch_size, checkpoint_every)
    )
    clip = None if clip is None else float(clip)
    loss_ = Loss(loss)
    device_ = _device(device)
    check_declaration(algorithm)
    selection.validate(len(data))
    if availability is not None:
        availability.validate(len(data))

    task = Task(
        model=FlatModel(model, device_, dtype, precision),
        data=on_device(data, device_),
        loss=loss_,
        seed=seed,
        local_steps=local_steps,
        local_epochs=local_epochs,
        batch_size=batch_size,
        weight_decay=weight_decay,
        clip=clip,
    )
    check_fit(task)
    m = min(len(data), getattr(selection, "m", None) or len(data))
    plan = choose_plan(engine, task, m)
    task = replace(task, compiled=plan.compiled)
    simulation = Simulation(
        task=task,
        algorithm=algorithm,
        selector=selection,
        plan=plan,
        lr_decay=lr_decay,
        on_bad_update=on_bad_update,
        availability=availability,
        system=system,
        scratch=None if out is None else Path(out).absolute().parent,
    )
    target = _check_target(target, simulation)
    info = {
        "algorithm": repr(algorithm),
        "selection": repr(selection),
        "availability": repr(availability),
        "system": repr(system),
        "clients": len(data),
        "parameters": task.model.size,
        "local_steps": local_steps,
        "local_epochs": local_epochs,
        "batch_size": batch_size,
        "loss": loss_.name,
        "lr_decay": {str(k): v for k, v in lr_decay.items()} if isinstance(lr_decay, Mapping) else lr_decay,
        "weight_decay": weight_decay,
        "clip": clip,
        "on_bad_update": on_bad_update,
        "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
        "precision": precision,
        "engine": plan.engine,
        "compiled": plan.compiled,
        "chunk": plan.chunk,
        "rounds": rounds,
        "device": str(device_),
        "versions": {"fedmos": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }

    if out is not None:
        info["model"], info["data"] = task.model.fingerprint(), data.fingerprint()
    earlier = _earlier(out, resume, info)
    if earlier is not None:
        simulation.restore(earlier)
    watchers: list[Callback] = [c if isinstance(c, Callback) else _Function(c) for c in callbacks]
    if Progress.wanted():
        watchers.append(Progress(type(algorithm).__name__))

    def result(interrupted: bool = False) -> Result:
        return simulation.result(info, interrupted)

    def done() -> bool:
        return simulation.t >= rounds or (simulation.t > 0 and _met(target, simulation.history[-1]))

    interrupted = False
    for watcher in watchers:
        watcher.on_start(rounds, simulation.t)
    first = simulation.t
    try:
        while not done():
            t = simulation.t + 1
            with repeatable(task) if simulation.t == first else nullcontext():
                record = simulation.round(evaluate=t % eval_every == 0 or t == rounds)
            for watcher in watchers:
                watcher.on_round(record)
            if out is not None and checkpoint_every is not None and t % checkpoint_every == 0:
                result().save(out)
    except KeyboardInterrupt:
        interrupted = True
    except DivergenceError as error:
        error.result = result(interrupted=True)
        raise
    final = result(interrupted)
    if out is not None and (simulation.t > first or earlier is None):
        final.save(out)
    for watcher in watchers:
        watcher.on_end(final)
    return final


class _Function(Callback):
    """A plain function of a record as a callback."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self._function = function

    def on_round(self, record: Record) -> None:
        self._function(record)


_KINDS = {
    "model": (nn.Module, "a torch.nn.Module"),
    "data": (FederatedData, "a fedmos.FederatedData"),
    "algorithm": (Algorithm, "a fedmos.Algorithm"),
    "selection": (Selector, "a fedmos.Selector"),
    "availability": (Availability, "a fedmos.Availability or None"),
    "system": (System, "a fedmos.System or None"),
}


def _check_kinds(**given: Any) -> None:
    for name, value in given.items():
        kind, words = _KINDS[name]
        if not isinstance(value, kind):
            got = f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__
            raise ValueError(f"run: '{name}' must be {words}, got {got}")
    if "algorithm" in given:
        require(type(given["algorithm"]).__name__, "lr", getattr(given["algorithm"], "lr", None), positive)


def _is_decay(v: Any) -> bool:
    if isinstance(v, Mapping):
        return all(integer.test(key) and key >= 0 and positive.test(factor) for key, factor in v.items())
    return positive.test(v)


_RULES = {
    "rounds": count,
    "local_steps": count | none,
    "local_epochs": count | none,
    "batch_size": count | none,
    "lr_decay": Rule("> 0, or factors > 0 by round", _is_decay),
    "weight_decay": non_negative,
    "clip": positive | none,
    "eval_every": count,
    "seed": integer,
    "dtype": one_of(*_DTYPES),
    "precision": one_of("tf32", "bf16") | none,
    "engine": one_of("auto", "loop", "batched"),
    "resume": boolean,
    "checkpoint_every": count | none,
    "on_bad_update": one_of("stop", "drop"),
    "callbacks": Rule("a sequence of callbacks", lambda v: isinstance(v, Sequence)),
    "out": Rule("a path or None", lambda v: v is None or isinstance(v, str | os.PathLike)),
}


def _check_settings(given: Mapping[str, Any]) -> None:
    for name, rule in _RULES.items():
        require("run", name, given[name], rule)
    for callback in given["callbacks"] or ():
        if isinstance(callback, type) or not (isinstance(callback, Callback) or callable(callback)):
            raise ValueError(f"run: 'callbacks' must be Callback objects or functions, got {callback!r}")
    if (given["local_steps"] is None) == (given["local_epochs"] is None):
        got = "both" if given["local_steps"] is not None else "neither"
        raise ValueError(f"run: exactly one of 'local_steps' and 'local_epochs' must be given, got {got}")
    if given["out"] is None and (given["resume"] or given["checkpoint_every"] is not None):
        raise ValueError("run: 'out' must be a folder where 'resume' or 'checkpoint_every' is given, got None")


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"run: 'device' must be 'auto' or a device of this machine, got {device!r}") from error
    return chosen


def _check_target(target: Mapping[str, float] | None, simulation: Simulation) -> Mapping[str, float]:
    if target is None:
        return {}
    known = simulation.metrics()
    if not isinstance(target, Mapping):
        raise ValueError(f"run: 'target' must map metrics to numbers, got {target!r}")
    for metric, value in target.items():
        if metric not in known:
            hint = " (this federation cannot measure it)" if metric in METRICS else suggest(str(metric), known)
            raise ValueError(f"run: 'target' must name one of {', '.join(known)}, got {metric!r}{hint}")
        require("run", f"target[{metric!r}]", value, number)
    return {metric: float(value) for metric, value in target.items()}


def _met(target: Mapping[str, float], record: Record) -> bool:
    return bool(target) and all(reached(name, getattr(record, name), value) for name, value in target.items())


def _earlier(out: str | os.PathLike[str] | None, resume: bool, info: Mapping[str, Any]) -> Result | None:
    """The saved state to continue from. A folder that holds anything else is refused before work begins."""
    if out is None:
        return None
    if not may_hold_result(Path(out)):
        raise FileExistsError(f"Cannot write the run to {out} because it holds something else; use a new folder")
    if not (Path(out) / "result.json").exists():
        Path(out).mkdir(parents=True, exist_ok=True)  # so that a folder that cannot be written to is noticed now
        return None
    if not resume:
        raise FileExistsError(f"Cannot write the run to {out} because it exists; use resume=True or a new folder")
    earlier = Result.load(out)
    for field, value in info.items():
        if field not in ("rounds", "device", "versions") and earlier.info.get(field) != value:
            raise ValueError(
                f"Cannot resume the run in {out} because its '{field}' is {earlier.info.get(field)!r}, got {value!r}; "
                "use a new folder"
            )
    return earlier
