"""Initial weights that depend on a seed alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module with PyTorch's own initialisers, leaving the global generators as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs as well
        return make()
