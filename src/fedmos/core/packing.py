"""Whether a model's packed sequences may stay padded in a vectorised program."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from .cohort_recurrence import longer
from .flat_model import FlatModel


class _Packing(TorchFunctionMode):
    """Notes whether sequences are packed, and whether some are shorter than the padded ones."""

    seen = shorter = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._pack_padded_sequence:
            x, lengths, batch_first = args
            self.seen, self.shorter = True, self.shorter or bool((lengths < x.size(int(batch_first))).any())
        return func(*args, **kwargs or {})


def why_not_padded(model: FlatModel, inputs: Tensor, equal_batches: bool) -> str | None:
    """Return why a vectorised program would compute something else than the model; None if it would not.

    A packed sequence has as many steps as the longest of its batch, which differs from client to client. A vectorised
    program computes with as many steps as the model's inputs have, and pads with further steps here. A model that
    cannot have more, because it has masks of that length for example, is tried with single samples, which are shorter.

    Args:
        model: The model, after its trial.
        inputs: A few samples.
        equal_batches: Whether all batches of all clients have the same size.
    """
    watch, x = _Packing(), model.initial()
    with watch, torch.no_grad():
        expected = [model.trace(y, inputs).outputs for y in (x, -x)]  # maxima over steps hide what is negative
    if not watch.seen:
        return None
    if not equal_batches and any(_drops(module) for module in model.module.modules()):
        return (
            "dropout between recurrent layers follows the order of packed sequences by length, and batches of "
            "different sizes would be padded"
        )
    try:
        with longer.on():
            agree = _close(model, expected, _vectorised(model, inputs))
    except Exception:  # whatever a user's module raises
        agree = watch.shorter and all(_agree(model, sample) for sample in inputs.split(1))
    if agree:
        return None
    return (
        "the outputs of the model depend on the length of the longest sequence of a batch, which differs from client "
        "to client (give pad_packed_sequence a total_length, or leave padding out of means and maxima)"
    )


@torch.no_grad()
def _vectorised(model: FlatModel, inputs: Tensor) -> Tensor:
    """Return the outputs of two models for the same inputs, (2, …)."""
    x = model.initial()
    found: Tensor = vmap(lambda y, z: model.trace(y, z).outputs)(torch.stack([x, -x]), inputs.expand(2, *inputs.shape))
    return found


@torch.no_grad()
def _agree(model: FlatModel, inputs: Tensor) -> bool:
    """Whether a vectorised program computes what the model computes."""
    x = model.initial()
    return _close(model, [model.trace(y, inputs).outputs for y in (x, -x)], _vectorised(model, inputs))


def _close(model: FlatModel, expected: list[Tensor], found: Tensor) -> bool:
    exact = 1e-8 if model.dtype == torch.float64 else 1e-3 if model.precision is None else 5e-2
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=exact, atol=exact)
        for a, b in zip(expected, found, strict=True)
    )


def _drops(module: nn.Module) -> bool:
    return isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1 and module.training
