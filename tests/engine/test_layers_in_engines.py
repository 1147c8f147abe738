"""Layers of PyTorch train alike client by client and vectorised."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm
from helpers.conformance import DEVICE

C = 4


class Pooled(nn.Module):
    """A layer between two linear maps: of channels before it, of what it returns, averaged over places, after it."""

    def __init__(self, layer, dimensions: int) -> None:
        super().__init__()
        self.first, self.layer, self.dimensions = nn.Linear(2, C), layer, dimensions
        self.last = nn.LazyLinear(3)
        self(torch.zeros(2, 2, *[6] * dimensions))

    def forward(self, x):
        x = self.layer(self.first(x.movedim(1, -1)).movedim(-1, 1))
        return self.last(x.flatten(2).mean(2) if self.dimensions else x)


class Function(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, self.training)


LAYERS = {
    "Conv1d": (1, lambda: nn.Conv1d(C, 5, 3, padding=1)),
    "Conv1d, strided, grouped": (1, lambda: nn.Conv1d(C, 8, 3, stride=2, groups=2)),
    "Conv1d, circular": (1, lambda: nn.Conv1d(C, 5, 3, padding=1, padding_mode="circular")),
    "Conv2d": (2, lambda: nn.Conv2d(C, 5, 3, padding="same")),
    "Conv2d, depthwise": (2, lambda: nn.Conv2d(C, C, 3, padding=1, groups=C)),
    "Conv2d, grouped": (2, lambda: nn.Conv2d(C, 6, 3, stride=2, groups=2)),
    "Conv2d, dilated": (2, lambda: nn.Conv2d(C, 5, 3, padding=2, dilation=2)),
    "Conv2d, reflected": (2, lambda: nn.Conv2d(C, 5, (3, 1), padding=(1, 0), padding_mode="reflect", bias=False)),
    "Conv3d": (3, lambda: nn.Conv3d(C, 3, 3, padding=1)),
    "Conv3d, grouped": (3, lambda: nn.Conv3d(C, 4, 3, stride=2, groups=2)),
    "ConvTranspose1d": (1, lambda: nn.ConvTranspose1d(C, 5, 3, stride=2, output_padding=1)),
    "ConvTranspose2d": (2, lambda: nn.ConvTranspose2d(C, 5, 2, stride=2)),
    "ConvTranspose2d, grouped, dilated": (2, lambda: nn.ConvTranspose2d(C, 6, 3, padding=1, dilation=2, groups=2)),
    "ConvTranspose3d": (3, lambda: nn.ConvTranspose3d(C, 2, 2, stride=2)),
    "GroupNorm": (2, lambda: nn.GroupNorm(2, C)),
    "LayerNorm": (1, lambda: nn.LayerNorm([C, 6])),
    "RMSNorm": (1, lambda: nn.RMSNorm(6)),
    "InstanceNorm1d": (1, lambda: nn.InstanceNorm1d(C)),
    "InstanceNorm2d": (2, lambda: nn.InstanceNorm2d(C, affine=True)),
    "LocalResponseNorm": (2, lambda: nn.LocalResponseNorm(2)),
    "PReLU": (2, lambda: nn.PReLU(C)),
    "activations": (0, lambda: nn.Sequential(nn.GELU(), nn.SiLU(), nn.Hardswish(), nn.Softplus(), nn.Mish(), nn.ELU())),
    "GLU": (1, lambda: nn.GLU(1)),
    "Softmax": (0, lambda: nn.Sequential(nn.Softmax(1), nn.LogSigmoid())),
    "Upsample, nearest": (2, lambda: nn.Upsample(scale_factor=2)),
    "Upsample, bilinear": (2, lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)),
    "Upsample, bicubic": (2, lambda: nn.Upsample(size=9, mode="bicubic")),
    "Upsample, linear": (1, lambda: nn.Upsample(size=9, mode="linear")),
    "AdaptiveAvgPool2d": (2, lambda: nn.AdaptiveAvgPool2d(4)),
    "AdaptiveAvgPool1d": (1, lambda: nn.AdaptiveAvgPool1d(4)),
    "AdaptiveMaxPool2d": (2, lambda: nn.AdaptiveMaxPool2d(4)),
    "MaxPool1d": (1, lambda: nn.MaxPool1d(3, 2)),
    "MaxPool2d": (2, lambda: nn.MaxPool2d(3, 2, padding=1)),
    "MaxPool3d": (3, lambda: nn.MaxPool3d(2)),
    "AvgPool": (3, lambda: nn.AvgPool3d(2)),
    "LPPool2d": (2, lambda: nn.LPPool2d(2, 2)),
    "PixelShuffle": (2, lambda: nn.PixelShuffle(2)),
    "PixelUnshuffle": (2, lambda: nn.PixelUnshuffle(2)),
    "ChannelShuffle": (2, lambda: nn.ChannelShuffle(2)),
    "padding": (2, lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.ZeroPad2d(1))),
    "Unfold and Fold": (2, lambda: nn.Sequential(nn.Unfold(2, stride=2), nn.Fold(6, 2, stride=2))),
    "grid_sample": (
        2,
        lambda: Function(lambda x, training: F.grid_sample(x, x.movedim(1, -1)[..., :2].tanh(), align_corners=False)),
    ),
    "Bilinear": (0, lambda: Twice(nn.Bilinear(C, C, 5))),
    "weight_norm": (2, lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(C, 5, 3))),
    "F.dropout": (2, lambda: Function(lambda x, training: F.dropout(x, 0.3, training))),
    "F.dropout2d": (2, lambda: Function(lambda x, training: F.dropout2d(x, 0.3, training))),
    "in place": (0, lambda: nn.Sequential(nn.Linear(C, C), nn.ReLU(inplace=True))),
}


class Twice(nn.Module):
    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, x.sin())


def train(model, inputs, engine, sizes=(5, 3, 4)):
    rng = np.random.default_rng(1)
    data = fm.FederatedData.from_arrays([(inputs(rng, n), rng.integers(3, size=n)) for n in sizes])
    how = {"rounds": 1, "local_steps": 2, "batch_size": 4, "dtype": torch.float64, "device": DEVICE}
    return fm.run(model, data, fm.FedAvg(lr=0.3), fm.Full(), engine=engine, **how)


def assert_engines_agree(model, inputs, **how) -> None:
    start = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    loop, batched = (train(model, inputs, engine, **how).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)
    assert float((loop - start).norm()) > 1e-3


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case):
    dimensions, layer = LAYERS[case]
    torch.manual_seed(0)
    assert_engines_agree(Pooled(layer(), dimensions), lambda rng, n: rng.normal(size=(n, 2, *[6] * dimensions)))


EMBEDDINGS = {
    "Embedding": lambda: nn.Embedding(9, C, padding_idx=0),
    "EmbeddingBag": lambda: nn.EmbeddingBag(9, C, mode="mean"),
    "EmbeddingBag, padded": lambda: nn.EmbeddingBag(9, C, mode="sum", padding_idx=0),
    "EmbeddingBag, maxima": lambda: nn.EmbeddingBag(9, C, mode="max"),
    "Embedding, sparse": lambda: nn.Embedding(9, C, sparse=True),
    "EmbeddingBag, sparse": lambda: nn.EmbeddingBag(9, C, sparse=True),
}


class Words(nn.Module):
    def __init__(self, layer) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(C, 3)

    def forward(self, tokens):
        x = self.layer(tokens)
        return self.last(x.mean(1) if x.ndim == 3 else x)


@pytest.mark.parametrize("case", EMBEDDINGS)
def test_embeddings(case):
    torch.manual_seed(0)
    assert_engines_agree(Words(EMBEDDINGS[case]()), tokens)


def tokens(rng, n):
    return rng.integers(9, size=(n, 5))


def test_gradients_by_frequency_need_equal_batches():
    """They are divided by how often a row occurs in the batch, where padding would count."""
    torch.manual_seed(0)
    model = Words(nn.Embedding(9, C, scale_grad_by_freq=True))
    assert_engines_agree(model, tokens, sizes=(4, 4, 4))
    with pytest.raises(ValueError, match=r"samples of a batch influence each other.*scale_grad_by_freq"):
        train(model, tokens, "batched")


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_change_their_weights_are_refused(layer):
    for engine in ("loop", "batched", "auto"):
        with pytest.raises(ValueError, match=r"Cannot train an embedding with max_norm \('layer'\).*use max_norm=None"):
            train(Words(layer(9, C, max_norm=0.5)), tokens, engine)
