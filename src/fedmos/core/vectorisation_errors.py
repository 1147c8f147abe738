"""Why a model cannot be vectorised: the module that fails, and the reason in words."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import nn

_READS = "it reads the value of a tensor, by `if`, int() or .item() (compute with tensors, by torch.where for example)"
_DATA_SHAPE = (
    "the shape of a tensor depends on the data, as that of x[mask], nonzero() and unique() does (keep the shape, by "
    "torch.where(mask, x, 0) or masked_fill for example)"
)
_SHARED = "it changes a tensor that clients share in place, by one that differs (make a new tensor)"
_DIFFERENTIATES = "it calls requires_grad_() or torch.autograd.grad in its forward pass (use torch.func.grad)"
_REASONS = {
    "data-dependent control flow": _READS,
    ".item()": _READS,
    "Cannot access data pointer": "it reads a tensor by .tolist() or .numpy() (compute with the tensor; "
    "pack_padded_sequence takes lengths as a tensor)",
    "inplace arithmetic": _SHARED,
    "is not possible because there exists a Tensor": _SHARED,
    "mutate a captured Tensor": _SHARED,
    "mutating directly with `.data`": _SHARED,
    "dynamic shape": _DATA_SHAPE,
    "masked_select": _DATA_SHAPE,
    "stack expects each tensor to be equal size": _DATA_SHAPE,
    "random operation": "it draws random numbers from PyTorch's generator (use F.dropout)",
    "Tensor.requires_grad_()": _DIFFERENTIATES,
    "does not require grad": _DIFFERENTIATES,
    "backward() called inside": _DIFFERENTIATES,
    "doesn't work on out=": "it calls a function with out= (use what the function returns), or one that "
    "torch.func.vmap cannot vectorise in this version of PyTorch",
    "got None (or an undefined Tensor": "torch.func.vmap cannot vectorise the gradient of one of its functions in this "
    "version of PyTorch",
    "inference tensor": "it calls torch.inference_mode() (use torch.no_grad())",
    "parse": "it uses a sparse tensor (use a dense one, or index_add)",
}
"""What errors of `torch.func.vmap` contain, and what they mean."""
_VMAP = ("vmap", "functorch", "atching rule")
"""What its other errors contain."""


_SLOW = re.compile(r"There is a performance drop because .* batching rule for (\S+?)\. ")
"""What `vmap` warns of where it computes an operation client by client."""


@contextmanager
def slow_operations(found: list[str]) -> Iterator[None]:
    """Add the names of operations that `vmap` computes client by client to `found`; other warnings pass."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if (match := _SLOW.match(str(warning.message))) is not None:
            found += [name for name in [match[1].removeprefix("aten::")] if name not in found]
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


class CannotVectorise(ValueError):
    """A vectorised program fails for the samples of a cohort.

    Args:
        problem: The reason.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"Cannot vectorise the model or the loss because {problem}; use engine='loop'")
        self.problem = problem


def problem_of(error: RuntimeError, model: nn.Module, loss: str) -> str | None:
    """Return what `vmap` says about samples in words, as `explain` does; None for other errors."""
    says = any(sign in str(error) for sign in (*_REASONS, *_VMAP))
    return explain(error, model, loss) if says else None


def explain(error: BaseException, model: nn.Module, loss: str | None = None) -> str:
    """Return the innermost module of `model` in which the error was raised, or the loss, and the reason.

    Args:
        error: The error.
        model: The model.
        loss: The name of the loss.
    """
    text = str(error).strip().split("\n")[0] or type(error).__name__
    reason = _of_function(error, text) or next((meaning for sign, meaning in _REASONS.items() if sign in text), None)
    if any(frame.f_globals.get("__name__", "").startswith("torch._dynamo.") for frame in _frames(error)):
        reason = "it calls a function that torch.compile made (call the function itself; a run compiles all of it)"
    where = failing_module(_frames(error), model)
    if where is None and loss is not None and any(_is_of_loss(frame) for frame in _frames(error)):
        where = f"the loss {loss}"
    reason = reason or _own_words(text)
    return f"{where}: {reason}" if where else reason


def _own_words(text: str) -> str:
    """Return an error of `vmap` without what it says about itself; other errors as they are."""
    if not any(sign in text for sign in _VMAP):
        return text
    text = text.split("Please")[0].removeprefix("vmap: ").strip().rstrip(".")
    return f"PyTorch cannot vectorise an operation of it ({text}; use another one)"


def _of_function(error: BaseException, text: str) -> str | None:
    """Explain an error about a `torch.autograd.Function` that is called."""
    if "setup_context" not in text and "vmap support" not in text and "vmap staticmethod" not in text:
        return None
    names = [kind.__name__ for frame in _frames(error) if isinstance(kind := frame.f_locals.get("cls"), type)]
    name = names[-1] if names else "it"
    if name == "CheckpointFunction":
        return "it recomputes activations (turn gradient checkpointing off)"
    if name == "BackwardHookFunction":
        return "it has a backward hook (use y.register_hook(f) on a tensor y of the forward pass)"
    how = "set generate_vmap_rule = True in the class"
    if "setup_context" in text:
        how = f"move what uses ctx from forward to setup_context, and {how}"
    return f"{name} is a torch.autograd.Function without a rule for vmap ({how})"


def _is_of_loss(frame: FrameType) -> bool:
    return bool(frame.f_globals.get("__name__") == f"{__package__}.losses")


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of an error, outermost first."""
    trace: Any = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def failing_module(frames: Iterator[FrameType], model: nn.Module) -> str | None:
    """Return the name and the class of the innermost module of `model` whose methods are among the frames."""
    names = {id(module): name for name, module in model.named_modules()}
    found = None
    for frame in frames:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            found = module
    if found is None:
        return None
    name = names[id(found)]
    return f"'{name}' ({type(found).__name__})" if name else type(found).__name__
