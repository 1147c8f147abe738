"""Which kinds of modules a run can train."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .statistics_layout import BatchNorm
from .validation import Rule

torch_module = Rule("a torch.nn.Module", lambda v: isinstance(v, nn.Module))


class UnsuitableModel(ValueError):
    """The model cannot be trained or evaluated; the message says why and what to do."""


def plain_module(model: nn.Module) -> nn.Module:
    """Return the model without the wrappers of `torch.compile` and of data parallelism.

    Raises:
        UnsuitableModel: If the model has lazy modules or ScriptModules.
    """
    while (inner := _wrapped(model)) is not None:
        model = inner
    _refuse_lazy(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsuitableModel(
                f"Cannot train a ScriptModule{_quoted(name)} because its parameters cannot be replaced by those of a "
                "client; use the Python module that it was made from"
            )
    if any(_wrapped(module) is not None for module in model.modules()):
        model = copy.deepcopy(model)
        for name, module in reversed(list(model.named_modules(remove_duplicate=False))):  # inner ones first
            if (inner := _wrapped(module)) is not None:
                model.set_submodule(name, inner)
    return model


def _wrapped(module: nn.Module) -> nn.Module | None:
    """Return the module that `torch.compile` or a class of data parallelism wraps; None for any other module."""
    inner = getattr(module, "_orig_mod", None) if type(module).__name__ == "OptimizedModule" else None
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = module.module
    return inner if isinstance(inner, nn.Module) else None


def _refuse_lazy(model: nn.Module) -> None:
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(value):
            raise UnsuitableModel(
                f"Cannot train the model because '{name}' of a lazy module has no shape yet; "
                "call the model once on a sample before the run"
            )


def _quoted(name: str) -> str:
    return f" ('{name}')" if name else ""


def check_batch_norm(model: nn.Module, client_statistics: bool = False) -> bool:
    """Refuse BatchNorm layers whose running statistics would change in training.

    Args:
        model: The model, each layer in the mode in which it is trained.
        client_statistics: Whether clients keep running statistics, so that no layer is refused.

    Returns:
        Whether some layer normalises with the statistics of the batch, having no running statistics.
    """
    of_batch = False
    for name, module in model.named_modules():
        if not isinstance(module, BatchNorm):
            continue
        if module.running_mean is None:
            of_batch = True
        elif module.training and not client_statistics:
            raise UnsuitableModel(
                f"Cannot train a model with BatchNorm ('{name}') because its running statistics mix clients' data; "
                "use batchnorm='group' (GroupNorm, as with fm.models.convert_batchnorm(model)), 'local' (each client "
                "keeps its statistics), 'local-affine' (and its scale and shift), or 'frozen' (the statistics that the "
                "model was given, as with fm.models.fold_batchnorm(model) or .eval() on the BatchNorm layers)"
            )
    return of_batch
