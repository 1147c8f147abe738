"""The option `batchnorm`: how the BatchNorm layers of a model are converted."""

from __future__ import annotations

from torch import nn

from ..core.module_copy import duplicated
from ..core.module_kind import UnsuitableModel
from ..core.statistics_layout import BatchNorm, BatchNormMode, batch_norms
from ..models.norm import convert_batchnorm

_NAMED = 3
"""The number of layers that a note names."""


def apply_batchnorm(model: nn.Module, mode: BatchNormMode | None) -> nn.Module:
    """Return the model that a run with this option trains: the model itself, or a changed copy.

    Args:
        model: The model of the user.
        mode: "group" converts BatchNorm to GroupNorm, "frozen" puts it in evaluation mode, and the local modes put a
            model that is in evaluation mode as a whole in training mode.

    Raises:
        UnsuitableModel: If a layer cannot be converted or frozen.
    """
    layers = batch_norms(model)
    if mode is None or not layers:
        return model
    if mode == "group":
        _check_groups(layers)
        return convert_batchnorm(model)
    if mode == "frozen":
        return _frozen(model, layers)
    return model if any(part.training for part in model.modules()) else duplicated(model).train()


def conversion_note(model: nn.Module, mode: BatchNormMode | None) -> str | None:
    """Return what to tell the user about layers that are converted; None if there are none."""
    layers = list(batch_norms(model))
    if mode != "group" or not layers:
        return None
    names = ", ".join(f"'{name}'" for name in layers[:_NAMED]) + (", …" if len(layers) > _NAMED else "")
    what = "1 BatchNorm layer is" if len(layers) == 1 else f"{len(layers)} BatchNorm layers are"
    return (
        f"batchnorm='group': {what} trained as GroupNorm with at most two groups, without running statistics ({names})"
    )


def _check_groups(layers: dict[str, BatchNorm]) -> None:
    """Refuse layers that would normalise single numbers, which makes them all equal."""
    for name, layer in layers.items():
        if layer.num_features <= 2 and isinstance(layer, nn.BatchNorm1d):
            raise UnsuitableModel(
                f"Cannot convert BatchNorm ('{name}') with num_features={layer.num_features} to GroupNorm because a "
                "group would have one number; use batchnorm='local'"
            )


def _frozen(model: nn.Module, layers: dict[str, BatchNorm]) -> nn.Module:
    """Return the model with its BatchNorm layers in evaluation mode."""
    for name, layer in layers.items():
        if layer.running_mean is None:
            raise UnsuitableModel(
                f"Cannot freeze BatchNorm ('{name}') because it has no running statistics; use batchnorm='group' or "
                "'local'"
            )
    if not any(layer.training for layer in layers.values()):
        return model
    model = duplicated(model)
    for layer in batch_norms(model).values():
        layer.eval()
    return model
