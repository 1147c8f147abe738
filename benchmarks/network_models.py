"""Networks of `benchmarks/networks.py`: recurrent ones, convolutions, MLPs, adapters on a frozen transformer."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

import fedmos as fm


class Recurrent(nn.Module):
    """Embeds tokens and classifies by the mean output of `nn.GRU` or `nn.LSTM`."""

    def __init__(self, kind: type[nn.RNNBase], tokens: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width // 2)
        self.layers = kind(width // 2, width, layers, batch_first=True)  # type: ignore[arg-type]
        self.score = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.layers(self.embed(x))
        return self.score(outputs.mean(1))  # type: ignore[no-any-return]


class Double(nn.Sequential):
    """Two convolutions of a U-Net, with GroupNorm."""

    def __init__(self, before: int, after: int) -> None:
        sizes = ((before, after), (after, after))
        layers = [(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU()) for a, b in sizes]
        super().__init__(*(module for group in layers for module in group))


class UNet(nn.Module):
    """Halves and doubles images `layers` times, up by `nn.ConvTranspose2d`; classifies by the mean over pixels."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(layers + 1)]
        self.down = nn.ModuleList(Double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        pairs = list(zip(widths[1:], widths[:-1], strict=True))[::-1]
        self.rise = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(Double(a, b) for a, b in pairs)
        self.score = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for k, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if k else x)
            seen.append(x)
        for rise, block, beside in zip(self.rise, self.up, seen[-2::-1], strict=True):
            x = block(torch.cat([rise(x), beside], 1))
        return self.score(x).mean((2, 3))  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions with BatchNorm beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        same = before == after and stride == 1
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + self.short(x)).relu()  # type: ignore[no-any-return]


def resnet(width: int, layers: int, classes: int) -> nn.Module:
    """A residual network with BatchNorm: three stages of `layers` blocks, as ResNet-20 with three."""
    sizes = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
    blocks = [
        ResidualBlock(after if k else before, after, 1 if k else stride)
        for before, after, stride in sizes
        for k in range(layers)
    ]
    stem = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


class ConvNextBlock(nn.Module):
    """A depthwise 7 × 7 convolution and an MLP of channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.across, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(self.across(x).movedim(1, -1))).movedim(-1, 1)  # type: ignore[no-any-return]


def convnext(width: int, layers: int, classes: int) -> nn.Module:
    blocks = [ConvNextBlock(width) for _ in range(layers)]
    return nn.Sequential(
        nn.Conv2d(3, width, 2, 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
    )


def audio(width: int, layers: int, classes: int) -> nn.Module:
    """1-D convolutions on a wave, the first of 80 samples with stride 4, each followed by pooling."""
    modules: list[nn.Module] = [nn.Conv1d(1, width, 80, 4, padding=38), nn.GroupNorm(4, width), nn.ReLU()]
    for _ in range(layers):
        modules += [nn.MaxPool1d(2), nn.Conv1d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
    return nn.Sequential(*modules, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, classes))


def table_mlp(features: int, width: int, layers: int, classes: int) -> nn.Module:
    sizes = [features, *[width] * layers]
    modules = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*modules, nn.Linear(width, classes))


def distilbert_lora(width: int, layers: int, length: int, tokens: int, classes: int) -> nn.Module:
    """DistilBERT made from its configuration, frozen, with adapters of rank 8 on queries and values and a trained head.

    A width of 768 with 6 layers has DistilBERT's 66 million frozen parameters, with 12 layers BERT's 110 million.
    """
    import transformers

    config = transformers.DistilBertConfig(
        vocab_size=tokens,
        dim=width,
        n_layers=layers,
        n_heads=max(1, width // 64),
        hidden_dim=4 * width,
        max_position_embeddings=max(length, 512),
        num_labels=classes,
    )
    model = transformers.DistilBertForSequenceClassification(config).train()
    return fm.models.lora(model, 8, ["q_lin", "v_lin"], alpha=16, train="*classifier.*")
