"""Larger networks from the `transformers` library, optionally with pretrained weights from a folder."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core.validation import Rule, require
from .norm import convert_batchnorm
from .seeded import checked, seeded

Folder = str | os.PathLike[str]

_FILES = ("config.json", "model.safetensors")
_FOLDER = Rule(
    f"a folder with {' and '.join(_FILES)}",
    lambda v: isinstance(v, str | os.PathLike) and all(Path(v, file).is_file() for file in _FILES),
)
_HEAD = ("classifier.weight", "classifier.bias")


@checked
def mobilenet_v2(
    classes: int = 10,
    depth_multiplier: float | None = None,
    dropout: bool = False,
    weights: Folder | None = None,
    seed: int = 0,
) -> nn.Module:
    """GHBM's MobileNetV2 for images of any size, with GroupNorm: 2,236,682 parameters for 10 classes.

    Needs `transformers`.

    Args:
        classes: Number of classes. If it differs from that of `weights`, the last layer is initialised anew.
        depth_multiplier: The width of all layers, relative to the paper's.
        dropout: Drop a fifth of the features before the last layer.
        weights: A folder with config.json and model.safetensors of a MobileNetV2ForImageClassification.
            BatchNorm becomes GroupNorm with two groups, which keeps the scale and shift but not the
            running statistics, so the model must be trained before it classifies well.
        seed: Seed of the initial weights that do not come from `weights`.

    Raises:
        ImportError: If `transformers` is not installed.
        ValueError: If `weights` does not fit the model.

    Example:
        >>> model = fm.models.mobilenet_v2(classes=2028, weights="mobilenet_v2_1.0_224")  # doctest: +SKIP
        >>> model = fm.models.mobilenet_v2(classes=10)
        >>> sum(p.numel() for p in model.parameters())
        2236682
    """
    config = {"depth_multiplier": depth_multiplier, "classifier_dropout_prob": 0.2 * dropout}
    return convert_batchnorm(_classifier("mobilenet_v2", "MobileNetV2", config, classes, weights, seed))


@checked
def vit_b16(
    classes: int = 10,
    image_size: int | None = None,
    patch: int | None = None,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    dropout: bool = False,
    weights: Folder | None = None,
    seed: int = 0,
) -> nn.Module:
    """GHBM's ViT-B/16 (Dosovitskiy et al., ICLR 2021) for 224×224 images: 85,806,346 parameters for 10 classes.

    Needs `transformers`. Sizes that are None are those of `weights`, or else the paper's.

    Args:
        classes: Number of classes. If it differs from that of `weights`, the last layer is initialised anew.
        image_size: Height and width of the images, 224 in the paper.
        patch: Height and width of a patch, 16 in the paper.
        layers: Number of layers, 12 in the paper.
        width: Size of the embeddings, 768 in the paper.
        heads: Number of attention heads, 12 in the paper.
        dropout: Drop a tenth of the embeddings and of every layer's output.
        weights: A folder with config.json and model.safetensors of a ViTForImageClassification or ViTModel.
        seed: Seed of the initial weights that do not come from `weights`.

    Raises:
        ImportError: If `transformers` is not installed.
        ValueError: If `weights` does not fit the model.

    Example:
        >>> model = fm.models.vit_b16(classes=1203, weights="vit-base-patch16-224")  # doctest: +SKIP
        >>> model = fm.models.vit_b16(classes=10, image_size=32, layers=2, width=64, heads=4)
        >>> model(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    config = {
        "image_size": image_size,
        "patch_size": patch,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": None if width is None else 4 * width,
        "num_attention_heads": heads,
        "hidden_dropout_prob": 0.1 * dropout,
        "attention_probs_dropout_prob": 0.0,  # dropout here would give other results than before
        "attn_implementation": "eager",  # as would another implementation, by rounding
    }
    return _classifier("vit_b16", "ViT", config, classes, weights, seed)


class Scores(nn.Module):
    """Wraps a classifier of `transformers` as a function from images to scores."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(images).logits
        return scores


def _classifier(
    owner: str, family: str, config: dict[str, Any], classes: int, weights: Folder | None, seed: int
) -> nn.Module:
    """Build a model of a family; settings that are None are those of the weights, or else the library's defaults."""
    library = _transformers(owner)
    Config, Model = getattr(library, f"{family}Config"), getattr(library, f"{family}ForImageClassification")
    config = {name: value for name, value in config.items() if value is not None} | {"num_labels": classes}
    if weights is None:
        return seeded(lambda: Scores(Model(Config(**config))), seed).train()
    settings, tensors = _read_weights(owner, weights)
    with _quiet(library):
        return seeded(lambda: Scores(_load(owner, Model, Config(**settings | config), tensors)), seed).train()


def _transformers(owner: str) -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(f"{owner} needs transformers; pip install 'fedmos[transformers]'") from error


def _read_weights(owner: str, folder: Folder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the settings and tensors of a folder. No other file is opened."""
    require(owner, "weights", folder, _FOLDER)
    files = [Path(folder, file) for file in _FILES]
    settings = json.loads(files[0].read_text(encoding="utf-8"))
    labels = ("id2label", "label2id")  # class names of the pretrained model
    return {name: value for name, value in settings.items() if name not in labels}, load_file(files[1])


def _load(owner: str, Model: Any, config: Any, tensors: dict[str, Tensor]) -> nn.Module:
    """Build a model with these tensors, under the names of any version of the library; only the head may differ."""
    model, report = Model.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    wrong = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}.difference(_HEAD))
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ValueError(
            f"{owner}: 'weights' must fit the model, but lack {wrong[0]}{more}, or have another shape there"
        )
    loaded: nn.Module = model
    return loaded


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Suppress progress bars and warnings about a newly initialised head."""
    log = library.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
