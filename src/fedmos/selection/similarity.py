"""Similarity of clients by the directions of their gradients or updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def angles_between(rows: Tensor) -> NDArray[np.float64]:
    """Return the angles between vectors, (M, M). A zero or non-finite vector is at a right angle to all others."""
    g = rows.to(torch.float64).cpu()
    g = torch.where(g.isfinite().all(1, keepdim=True), g, 0.0)
    g = g / g.norm(dim=1, keepdim=True).clamp(min=1e-300)
    angles: NDArray[np.float64] = (g @ g.T).clamp(-1, 1).arccos().numpy()
    np.fill_diagonal(angles, 0.0)
    return angles


def ward_tree(distances: NDArray[np.float64]) -> Any:
    """Return the tree of agglomerative clustering with Ward linkage, in the format of SciPy. Needs two rows or more."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform((distances + distances.T) / 2, checks=False), method="ward")
