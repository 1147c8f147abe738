"""Codecs that the tests share, and the random vectors they encode."""

import torch

from fedmos import codecs

CODECS = [
    codecs.Float16(),
    *(codecs.Quantize(bits) for bits in range(1, 9)),
    codecs.Quantize(4, block=7),
    codecs.Quantize(2, stochastic=False),
    codecs.Quantize(5, block=1, stochastic=False),
    codecs.Sign(),
    codecs.Sign(block=32),
    codecs.TopK(0.01),
    codecs.TopK(0.3),
    codecs.TopK(1.0),
    codecs.RandomK(0.01),
    codecs.RandomK(0.3, unbiased=False),
    codecs.RandomK(1.0),
    codecs.Rotate(),
    codecs.Rotate(block=8),
    codecs.Chain([codecs.Rotate(), codecs.Quantize(4)]),
    codecs.Chain([codecs.TopK(0.1), codecs.Quantize(4)]),
    codecs.Chain([codecs.RandomK(0.2), codecs.Float16()]),
    codecs.Chain([codecs.Rotate(16), codecs.TopK(0.1), codecs.Rotate(), codecs.Quantize(3, block=16)]),
    codecs.Chain([codecs.Rotate(), codecs.Rotate()]),
    codecs.ErrorFeedback(codecs.Sign()),
    codecs.ErrorFeedback([codecs.RandomK(0.1), codecs.Quantize(1)]),
]
"""Every codec, with several of its options."""

SIZES = (1, 2, 3, 7, 8, 9, 31, 255, 256, 257, 1000, 4099)


def normal(*shape, seed=0, dtype=torch.float32):
    """Return normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def decoded(codec, v, key):
    """Return what arrives."""
    return codec.decode(codec.encode(v, key), v.shape[-1], key)


def same(a, b):
    """Whether fields have the same names, dtypes and bits."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(_bits(a[name]), _bits(b[name])) for name in a
    )


def _bits(v):
    return v.contiguous().view(torch.uint8)
