"""Why a model cannot be vectorised: the module that fails, and the reason in words."""

from __future__ import annotations

from torch import nn

_READS = "it reads the value of a tensor, by `if`, int() or .item() (compute with tensors, by torch.where for example)"
_REASONS = {
    "data-dependent control flow": _READS,
    ".item()": _READS,
    "Cannot access data pointer": "it reads a tensor by .tolist() or .numpy() (compute with the tensor; "
    "pack_padded_sequence takes lengths as a tensor)",
    "inplace arithmetic": "it changes a tensor that clients share in place, by one that differs (make a new tensor)",
}
"""What errors of `torch.func.vmap` contain, and what they mean."""


def explain(error: BaseException, model: nn.Module) -> str:
    """Return the innermost module of `model` in which the error was raised, and the reason."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    reason = next((meaning for sign, meaning in _REASONS.items() if sign in text), text)
    where = _failing_module(error, model)
    return f"{where}: {reason}" if where else reason


def _failing_module(error: BaseException, model: nn.Module) -> str | None:
    names = {id(module): name for name, module in model.named_modules()}
    found, trace = None, error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            found = module
        trace = trace.tb_next
    if found is None:
        return None
    name = names[id(found)]
    return f"'{name}' ({type(found).__name__})" if name else type(found).__name__
