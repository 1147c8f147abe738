"""A layer with a low-rank adapter (LoRA)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LoraLayer(nn.Module):
    """A frozen layer with weight W and a trainable update of low rank: it computes with W + alpha/rank · B A.

    W and B A are never added up in training, so that the clients of a cohort share W. Other attributes are those of the
    frozen layer; `weight` is the sum, for code that reads the weight of a layer instead of calling it.
    """

    def __init__(self, base_layer: nn.Module, rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.base_layer, self.scale = base_layer, scale
        self.lora_A, self.lora_B = _factors(base_layer, rank)
        nn.init.zeros_(self.lora_B.weight)
        # The inputs of an embedding are numbers of rows.
        self.lora_dropout = nn.Dropout(dropout) if dropout and not _is_embedding(base_layer) else nn.Identity()
        weight: Any = base_layer.weight
        self.to(device=weight.device, dtype=weight.dtype).train(base_layer.training)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.lora_B(self.scale * self.lora_A(self.lora_dropout(x)))
        return self.base_layer(x) + update  # type: ignore[no-any-return]

    @property
    def weight(self) -> Tensor:
        """W + alpha/rank · B A."""
        base: Any = self.base_layer
        A, B = self.lora_A.weight, self.lora_B.weight.flatten(1)
        update = A @ B.mT if _is_embedding(base) else B @ A.flatten(1)
        total: Tensor = base.weight + self.scale * (update.mT if _is_conv1d(base) else update.view_as(base.weight))
        return total

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base_layer":
                raise
            return getattr(self.base_layer, name)

    def extra_repr(self) -> str:
        return f"rank={self.lora_B.weight.shape[1]}, scale={self.scale:g}"


def is_adaptable(module: nn.Module) -> bool:
    """Return whether a layer can get an adapter."""
    weight = module._parameters.get("weight")  # a weight that is computed, as by weight_norm, is not there
    if weight is None or not weight.is_floating_point():
        return False
    if isinstance(module, nn.Embedding):
        return module.max_norm is None
    if isinstance(module, _CONVOLUTIONS):
        return module.groups == 1
    return isinstance(module, nn.Linear) or _is_conv1d(module)


def _is_embedding(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Embedding)


def _is_conv1d(layer: nn.Module) -> bool:
    """Whether the layer is the linear layer of GPT-2 in `transformers`, whose weight has the inputs first."""
    return type(layer).__name__ == "Conv1D" and type(layer).__module__.startswith("transformers.")


def _factors(layer: Any, rank: int) -> tuple[Any, Any]:
    """Return A and B as layers of PyTorch, with its initial values, which are Kaiming's."""
    if isinstance(layer, _CONVOLUTIONS):
        kind: Any = next(kind for kind in _CONVOLUTIONS if isinstance(layer, kind))
        A = kind(
            layer.in_channels,
            rank,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            bias=False,
            padding_mode=layer.padding_mode,
        )
        return A, kind(rank, layer.out_channels, 1, bias=False)
    if _is_embedding(layer):
        A = nn.Embedding(layer.num_embeddings, rank, padding_idx=layer.padding_idx)
        nn.init.kaiming_uniform_(A.weight, a=5**0.5)
        if layer.padding_idx is not None:
            nn.init.zeros_(A.weight[layer.padding_idx])
        return A, nn.Linear(rank, layer.embedding_dim, bias=False)
    inputs, outputs = layer.weight.shape if _is_conv1d(layer) else reversed(layer.weight.shape)
    return nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
