"""The memory layout of a cohort's images."""

from __future__ import annotations

from torch import Tensor


def empty_images(like: Tensor, B: int, M: int, C: int, H: int, W: int) -> Tensor:
    """Allocate images of shape (B, M, C, H, W), channels last.

    If C is a multiple of 16, the channels of all clients are adjacent, as PyTorch's grouped convolutions need them.
    Otherwise, mostly our own kernels use the images, and each client's images are contiguous.
    """
    if C % 16:
        return like.new_empty((M, B, H, W, C)).permute(1, 0, 4, 2, 3)
    return like.new_empty((B, H, W, M, C)).permute(0, 3, 4, 1, 2)
