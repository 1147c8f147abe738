"""`fm.run`: one federated training run from arguments to result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from ..algorithm import Algorithm
from ..core.callback import Callback
from ..core.history import Record
from ..core.losses import LossFunction
from ..core.precision import Precision
from ..data.federated import FederatedData
from ..engine.lr_schedule import Decay
from ..engine.simulated_clock import System
from ..selection.availability import Availability
from ..selection.selector import Selector
from ..storage.checkpoint_schedule import Every
from .result import Result
from .run import Run


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
    checkpoint_every: Every = None,
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
        out: a folder for the run: its configuration, metrics, log and checkpoints; see docs/reliability.md.
        resume: continue the run in `out`; start anew if there is none, return the result if it is finished.
        checkpoint_every: save in `out` after every so many rounds, or after a time such as "30s" or "5min";
            None saves as often as costs a twentieth of the time, and not more than every ten seconds.
        on_bad_update: at an update that is not finite, "stop" (DivergenceError) or "drop" the client for the round.
        callbacks: `Callback` objects, or functions of a round's record.

    Ctrl-C ends the run after the last complete round; the result says `interrupted`.
    """
    return Run(**locals()).play()
