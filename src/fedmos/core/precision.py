"""PyTorch's settings for the precision and determinism of arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["tf32", "bf16"] | None
"""None: products in the run's dtype. "tf32": products with ten-bit mantissas (GPU). "bf16": layers compute in bfloat16,
while parameters, state and updates stay float32."""


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Set the precision and deterministic kernels for the duration of a run, then restore PyTorch's settings."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = precision is not None
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
