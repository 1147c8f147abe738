"""Larger networks from the `transformers` library, with pretrained weights from a folder if there is one."""

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

from .norm import convert_batchnorm
from .seeded import checked, seeded

Folder = str | os.PathLike[str]

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

    Args:
        classes: how many; a head for another number than the weights' is made anew.
        depth_multiplier: the width of all layers, relative to the paper's.
        dropout: drop a fifth of the features before the last layer.
        weights: a folder with config.json and model.safetensors of a MobileNetV2ForImageClassification.
            BatchNorm becomes GroupNorm of two groups, which keeps its scale and shift but not the
            running statistics, so that such a model must be trained before it classifies well.
        seed: decides whatever does not come from `weights`.
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

    Args:
        classes: how many; a head for another number than the weights' is made anew.
        image_size, patch, layers, width, heads: by default those of `weights`, else 224, 16, 12, 768, 12.
        dropout: drop a tenth of the embeddings and of every layer's output.
        weights: a folder with config.json and model.safetensors of a ViTForImageClassification or ViTModel.
        seed: decides whatever does not come from `weights`.
    """
    config = {
        "image_size": image_size,
        "patch_size": patch,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": None if width is None else 4 * width,
        "num_attention_heads": heads,
        "hidden_dropout_prob": 0.1 * dropout,
        "attention_probs_dropout_prob": 0.0,  # functional, hence from the global generator
        "attn_implementation": "eager",  # the fused kernels have no rule for vmap on a CPU
    }
    return _classifier("vit_b16", "ViT", config, classes, weights, seed)


class Scores(nn.Module):
    """A classifier of `transformers` as a plain function of images."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(images).logits
        return scores


def _classifier(
    owner: str, family: str, config: dict[str, Any], classes: int, weights: Folder | None, seed: int
) -> nn.Module:
    """A model of that family; settings that are None are those of the weights, or else the library's."""
    library = _transformers(owner)
    Config, Model = getattr(library, f"{family}Config"), getattr(library, f"{family}ForImageClassification")
    config = {name: value for name, value in config.items() if value is not None} | {"num_labels": classes}
    if weights is None:
        return seeded(lambda: Scores(Model(Config(**config))), seed).train()
    settings, tensors = _read(owner, Path(weights))
    with _quiet(library):
        return seeded(lambda: Scores(_loaded(owner, Model, Config(**settings | config), tensors)), seed).train()


def _transformers(owner: str) -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(f"{owner} needs transformers; pip install 'fedmos[transformers]'") from error


def _read(owner: str, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and tensors in a folder. No other file of it is looked at, and none elsewhere."""
    files = folder / "config.json", folder / "model.safetensors"
    for file in files:
        if not file.is_file():
            raise ValueError(
                f"{owner}: 'weights' must be a folder with config.json and model.safetensors, got {folder}"
            )
    settings = json.loads(files[0].read_text(encoding="utf-8"))
    labels = ("id2label", "label2id")  # names of the classes that the weights know
    return {name: value for name, value in settings.items() if name not in labels}, load_file(files[1])


def _loaded(owner: str, Model: Any, config: Any, tensors: dict[str, Tensor]) -> nn.Module:
    """A model with these tensors, by the names they have had in any version of the library, and a fitting head."""
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
    """No progress bars and no reports on a new head, which is what was asked for."""
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
