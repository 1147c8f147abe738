"""How a cohort's images are stored."""

from __future__ import annotations

from torch import Tensor


def empty_images(like: Tensor, B: int, M: int, C: int, H: int, W: int) -> Tensor:
    """Room for (B, M, C, H, W), channels last.

    The clients' channels lie side by side, as the library's grouped convolutions want them, unless they are few or odd:
    mostly our own kernels compute with those, for which each client's images lie by themselves, in longer pieces.
    """
    if C % 16:
        return like.new_empty((M, B, H, W, C)).permute(1, 0, 4, 2, 3)
    return like.new_empty((B, H, W, M, C)).permute(0, 3, 4, 1, 2)
