"""Options of embedding layers that a run changes or refuses."""

from __future__ import annotations

import torch
from torch import nn

from .module_kind import UnsuitableModel


def prepare_embeddings(model: nn.Module) -> None:
    """Turn sparse gradients off in place, because gradients are vectors here; refuse `max_norm`.

    The rows of a frozen layer are normalised at once instead of when they are read, which changes the shared weights.

    Raises:
        UnsuitableModel: If a trained layer has `max_norm`.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            if module.max_norm is not None and module.weight.requires_grad:
                raise UnsuitableModel(
                    f"Cannot train an embedding with max_norm ('{name}') because its forward pass changes its "
                    "parameters in place; use max_norm=None, and normalise the rows that it returns"
                )
            if module.max_norm is not None:
                rows = torch.arange(module.num_embeddings, device=module.weight.device)
                with torch.no_grad():
                    torch.embedding_renorm_(module.weight, rows, module.max_norm, module.norm_type)
                module.max_norm = None
            module.sparse = False


def scales_by_frequency(model: nn.Module) -> bool:
    """Whether gradients are divided by how often a row occurs in the batch, so that samples influence each other."""
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.scale_grad_by_freq for m in model.modules())
