"""Low-rank adapters (LoRA) on the frozen layers of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from ..core.formatting import format_value
from ..core.module_copy import duplicated
from ..core.module_kind import plain_module, torch_module
from ..core.validation import below_one, count, none, positive, require, suggest
from ..core.validation import seed as seed_rule
from .lora_layer import LoraLayer, is_adaptable
from .seeded import seeded

_ADAPTABLE = "nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d without groups, or Conv1D of transformers"


def lora(
    model: nn.Module,
    rank: int,
    targets: str | Sequence[str],
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    train: str | Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """Return a copy of `model` whose weights are frozen and whose target layers have trainable low-rank adapters.

    A layer with weight W computes with W + alpha/rank · B A (Hu et al., LoRA, ICLR 2022). A has `rank` rows and random
    values, B has `rank` columns and starts at zero, so that the copy first computes what the model computes. A run
    trains, stores per client and sends A and B only; clients share W. `merge_lora` adds the update to W.

    A pattern matches the whole name of a layer or its last parts, with the wildcards `*` and `?`: "q_lin" and
    "layer.*.q_lin" match "encoder.layer.0.q_lin". Of the layers that match, linear layers (with Conv1D of
    transformers), embeddings and convolutions without groups get adapters.

    Args:
        model: A module. It is not changed.
        rank: The rank of the updates.
        targets: Patterns of the names of layers, as in `named_modules()`.
        alpha: The scale of the updates; None for `rank`, that is alpha/rank = 1.
        dropout: Probability that an input of an adapter is dropped in training. Adapters of embeddings have none.
        train: Patterns of the names of parameters, as in `named_parameters()`, that are trained in full beside the
            adapters, such as "classifier.*". Their layers get no adapters.
        seed: Seed of the initial values of A.

    Returns:
        The copy. A target `layer` has the parameters `layer.base_layer.weight`, `layer.lora_A.weight` and
        `layer.lora_B.weight`.

    Raises:
        ValueError: If an argument is out of range, or a pattern matches nothing.

    Example:
        >>> from torch import nn
        >>> base = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        >>> adapted = fm.models.lora(base, rank=2, targets="0", train="2.*")
        >>> [name for name, p in adapted.named_parameters() if p.requires_grad]
        ['0.lora_A.weight', '0.lora_B.weight', '2.weight', '2.bias']
    """
    _check_arguments(model, rank, alpha, dropout, seed)
    target_patterns, train_patterns = _patterns("targets", targets), _patterns("train", train)
    model = plain_module(model)
    if any(isinstance(module, LoraLayer) for module in model.modules()):
        raise ValueError("Cannot add adapters because the model has some; use fm.models.merge_lora(model) first")
    model = duplicated(model).requires_grad_(False)
    _train_in_full(model, train_patterns)
    layers = _find_layers(model, target_patterns)
    _check_attention(model, layers, dropout)
    how = _Adapters(rank, (rank if alpha is None else alpha) / rank, dropout)
    new = seeded(lambda: nn.ModuleList(LoraLayer(layer, *how) for layer in layers), seed)
    return _replace(model, dict(zip(map(id, layers), new.children(), strict=True)))


class _Adapters(NamedTuple):
    rank: int
    scale: float
    dropout: float


def merge_lora(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with the updates of its adapters added to the weights: W + alpha/rank · B A.

    The copy has the layers and the names of the model that was given to `lora`, and computes what `model` computes in
    evaluation mode, up to rounding. A weight that was tied to another one is not any more.

    Args:
        model: A module with adapters of `lora`, such as `result.model`.

    Raises:
        ValueError: If the model has no adapters.

    Example:
        >>> from torch import nn
        >>> adapted = fm.models.lora(nn.Sequential(nn.Linear(64, 10)), rank=2, targets="0")
        >>> fm.models.merge_lora(adapted)
        Sequential(
          (0): Linear(in_features=64, out_features=10, bias=True)
        )
    """
    require("merge_lora", "model", model, torch_module)
    model = duplicated(model)
    named: list[tuple[str, nn.Parameter]] = list(model.named_parameters(remove_duplicate=False))
    config: Any = getattr(model, "config", None)
    merged: dict[int, nn.Module] = {}
    for layer in [module for module in model.modules() if isinstance(module, LoraLayer)]:
        base: Any = layer.base_layer
        if sum(p is base.weight for _, p in named) > 1 and hasattr(config, "tie_word_embeddings"):
            config.tie_word_embeddings = False  # `from_pretrained` would tie the weights again
        base.weight = nn.Parameter(layer.weight.detach(), requires_grad=base.weight.requires_grad)
        merged[id(layer)] = base
    if not merged:
        raise ValueError(
            f"merge_lora: 'model' must have adapters of fm.models.lora, got {format_value(type(model).__name__)}"
        )
    return _replace(model, merged)


def _check_arguments(model: object, rank: int, alpha: float | None, dropout: float, seed: int) -> None:
    require("lora", "model", model, torch_module)
    require("lora", "rank", rank, count.up_to(10**6))
    require("lora", "alpha", alpha, positive | none)
    require("lora", "dropout", dropout, below_one)
    require("lora", "seed", seed, seed_rule)


def _patterns(field: str, given: object) -> list[str]:
    """Return name patterns as a list."""
    patterns: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not all(isinstance(pattern, str) and pattern for pattern in patterns) or (field == "targets" and not patterns):
        raise ValueError(f"lora: '{field}' must be a name pattern or a list of them, got {format_value(given)}")
    return patterns


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _hint(pattern: str, names: Iterable[str]) -> str:
    """Suggest a name, or the last part of one."""
    return suggest(pattern, {word: None for name in names for word in (name.rpartition(".")[2], name) if word})


def _train_in_full(model: nn.Module, patterns: Sequence[str]) -> None:
    """Make the parameters trainable that match a pattern."""
    named = list(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(_matches(name, pattern) for name, _ in named):
            hint = _hint(pattern, (name for name, _ in named))
            raise ValueError(
                f"lora: 'train' must match parameters of the model, got {format_value(pattern)}{hint}; "
                "all parameters of a layer are 'layer.*'"
            )
    chosen = {name: p for name, p in named if any(_matches(name, pattern) for pattern in patterns)}
    for name, p in chosen.items():
        tied = [other for other, q in named if q is p and other not in chosen]
        if tied:
            raise ValueError(
                f"Cannot train '{name}' because it is the same parameter as '{tied[0]}', which 'train' does not name; "
                "name both, or leave both frozen and make the layer a target"
            )
        p.requires_grad_(True)


def _find_layers(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """Return the layers that match a pattern and get adapters, once each."""
    named = list(model.named_modules(remove_duplicate=False))
    chosen: dict[int, nn.Module] = {}
    for pattern in patterns:
        found = [module for name, module in named if _matches(name, pattern)]
        adaptable = [module for module in found if is_adaptable(module)]
        frozen = [module for module in adaptable if not any(p.requires_grad for p in module.parameters())]
        if not frozen:
            raise ValueError(_nothing_to_adapt(pattern, named, found, adaptable))
        chosen |= {id(module): module for module in frozen}
    return list(chosen.values())


def _nothing_to_adapt(
    pattern: str, named: Sequence[tuple[str, nn.Module]], found: Sequence[nn.Module], adaptable: Sequence[nn.Module]
) -> str:
    """Return why a pattern adapts no layer."""
    got = format_value(pattern)
    if not found:
        hint = _hint(pattern, (name for name, module in named if is_adaptable(module)))
        return f"lora: 'targets' must match layers of the model, got {got}{hint}"
    if not adaptable:
        kinds = ", ".join(sorted({type(module).__name__ for module in found}))
        return f"lora: 'targets' must match layers that are {_ADAPTABLE}, got {got}, which matches {kinds} only"
    return f"lora: 'targets' must match layers that 'train' does not name, got {got}"


def _check_attention(model: nn.Module, layers: Sequence[nn.Module], dropout: float) -> None:
    """Refuse dropout where a layer is not called: `nn.MultiheadAttention` reads the weight of its last layer."""
    for name, module in model.named_modules():
        inner = module.out_proj if isinstance(module, nn.MultiheadAttention) else None
        if dropout and any(layer is inner for layer in layers):
            raise ValueError(
                f"Cannot apply dropout to the adapter of '{name}.out_proj' because nn.MultiheadAttention does not call "
                "this layer; use dropout=0, or other targets"
            )


def _replace(model: nn.Module, new: dict[int, nn.Module]) -> nn.Module:
    """Replace submodules, by identity, at all places where they occur; returns the model."""
    for name, module in reversed(list(model.named_modules(remove_duplicate=False))):  # inner ones first
        if name and id(module) in new:
            model.set_submodule(name, new[id(module)])
    return new.get(id(model), model)
