"""Transposed convolutions whose kernels do not overlap, as products of matrices.

With a stride as long as the kernel, as in the decoders of U-Nets, every place of the input makes a patch of the output
of its own: one product per client, where `vmap` would call a grouped transposed convolution.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .client_axis import is_vectorised

_KINDS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def replace_transposed_convolutions(model: nn.Module) -> None:
    """Have the supported layers of `model` compute products where their weights have a client axis."""
    for module in model.modules():
        if type(module) in _KINDS and _is_supported(module):
            module.__class__ = _COHORT[type(module)]


def _is_supported(layer: Any) -> bool:
    plain = layer.groups == 1 and not any(layer.padding) and not any(layer.output_padding)
    return plain and all(d == 1 for d in layer.dilation) and tuple(layer.stride) == tuple(layer.kernel_size)


def patches(x: Tensor, w: Tensor) -> Tensor:
    """Return the transposed convolution of x (B, C, …) with w (C, CO, …), the stride being the kernel's size."""
    places, kernel = x.shape[2:], w.shape[2:]
    rows = x.movedim(1, -1).flatten(0, -2) @ w.flatten(1)
    y = rows.view(len(x), *places, w.shape[1], *kernel)
    n = len(places)
    pairs = [axis for k in range(n) for axis in (1 + k, 2 + n + k)]
    return y.permute(0, 1 + n, *pairs).reshape(
        len(x), w.shape[1], *(p * k for p, k in zip(places, kernel, strict=True))
    )


class _Products:
    """Mixed into PyTorch's layers."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is not None or input.ndim != self.weight.ndim or not is_vectorised(self.weight):
            y: Tensor = super().forward(input, output_size)  # type: ignore[misc]
            return y
        y = patches(input, self.weight)
        return y if self.bias is None else y + self.bias.to(y.dtype).view(-1, *[1] * (y.ndim - 2))


class CohortConvTranspose1d(_Products, nn.ConvTranspose1d):
    """A layer of a cohort."""


class CohortConvTranspose2d(_Products, nn.ConvTranspose2d):
    """A layer of a cohort."""


class CohortConvTranspose3d(_Products, nn.ConvTranspose3d):
    """A layer of a cohort."""


_COHORT: dict[type[nn.Module], type[nn.Module]] = dict(
    zip(_KINDS, (CohortConvTranspose1d, CohortConvTranspose2d, CohortConvTranspose3d), strict=True)
)
