"""Classes of the user's that are no dataclasses, with one number that decides what they do."""

import torch

import fedmos as fm


class Scaled(fm.local.LocalOptimizer):
    def __init__(self, factor):
        self.factor = factor

    def update(self, d, y, s, lr, layers):
        return self.factor * d, {}


class ScaledCodec(fm.codecs.Codec):
    def __init__(self, factor):
        self.factor = factor

    def declare(self, size):
        return {"values": ("float", size)}

    def encode(self, v, key):
        return {"values": self.factor * v}

    def decode(self, fields, size, key):
        return fields["values"]


class ScaledMean(fm.aggregation.Mean):
    def __init__(self, factor):
        self.factor = factor

    def aggregate(self, rows, weights):
        return self.factor * super().aggregate(rows, weights)


class ScaledUploads(fm.attacks.SignFlip):
    def __init__(self, factor):
        super().__init__(scale=1.0, share=0.5)
        object.__setattr__(self, "factor", factor)

    def forge(self, rows, honest, key):
        return self.factor * rows


class HalfPrecision:
    """A codec by its methods alone."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def encode(self, v, key):
        return {"values": (self.scale * v).half()}

    def decode(self, fields, size, key):
        return fields["values"].float() / self.scale

    def nbytes(self, size):
        return 2 * size


class Undeclared(fm.codecs.Codec):
    """A codec that leaves its declaration to the library, and counts a header."""

    def encode(self, v, key):
        scale = v.abs().amax(dim=-1, keepdim=True)
        return {"codes": (127 * v / scale.clamp(min=1e-30)).round().to(torch.int8), "scale": scale}

    def decode(self, fields, size, key):
        return fields["codes"] * fields["scale"] / 127

    def nbytes(self, size):
        return size + 12


class Largest:
    """A codec by its methods alone, whose numbers have the dtype of the vector. Counts the bytes of float32 numbers."""

    def encode(self, v, key):
        index = v.abs().argmax(dim=-1, keepdim=True)
        return {"index": index.to(torch.int32), "value": v.gather(-1, index)}

    def decode(self, fields, size, key):
        zeros = fields["value"].new_zeros(*fields["value"].shape[:-1], size)
        return zeros.scatter_(-1, fields["index"].long(), fields["value"])

    def nbytes(self, size):
        return 8
