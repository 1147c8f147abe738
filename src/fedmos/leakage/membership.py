"""Membership inference by losses: does the model know which samples it was trained on?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..core.validation import Rule, count, require, whole_number
from ..data.federated import FederatedData
from ..rng import Purpose, generator
from ..run.result import Result

Losses = NDArray[np.float64]

federation = Rule("a fedmos.FederatedData", lambda v: isinstance(v, FederatedData))


@dataclass(frozen=True)
class Membership:
    """How well losses tell samples that a model was trained on from others.

    Example:
        >>> fm.leakage.Membership(auc=0.9, p_value=1e-6).auc
        0.9
    """

    auc: float
    """The probability that a training sample has a smaller loss than another one; 0.5 if the model reveals nothing."""
    p_value: float
    """The probability of such an AUC or a larger one if the model reveals nothing (Mann-Whitney test)."""


def membership(result: Result, data: FederatedData, samples: int = 1000, seed: int = 0) -> Membership:
    """Compare the losses of training and test samples at the final model of a run.

    Args:
        result: The result of the run. Its task is a classification.
        data: The federation of the run, with a test set.
        samples: The number of samples of each kind, at most.
        seed: Seed of the draw of samples.

    Returns:
        The AUC of the attack that calls samples of a small loss training samples, and its p-value.

    Raises:
        ValueError: If a value is out of range, or the data have no test set or no class labels.

    Example:
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=8)
        >>> 0 <= fm.leakage.membership(result, data).auc <= 1
        True
    """
    require("membership", "samples", samples, count)
    require("membership", "seed", seed, whole_number)
    test = labelled_test("membership", data)
    draw = generator(seed, Purpose.DIAGNOSTICS)
    total = int(data.offsets[-1])
    own = torch.arange(total) if data.index is None else data.index[:total]
    inside = own[torch.from_numpy(draw.permutation(len(own))[:samples])].long()
    outside = torch.from_numpy(draw.permutation(len(test[1]))[:samples])
    auc, p_value = rank_test(
        sample_losses(result, data.x[inside], data.y[inside]), sample_losses(result, test[0][outside], test[1][outside])
    )
    return Membership(auc, p_value)


def labelled_test(owner: str, data: FederatedData) -> tuple[Any, Tensor]:
    """Return the test set; refuse data without one, and data without class labels."""
    require(owner, "data", data, federation)
    if data.test is None:
        raise ValueError(f"Cannot measure {owner} without a test set, which gives samples that no client has; add one")
    x, y = data.test
    if y.ndim != 1 or y.is_floating_point() or data.y.ndim != 1:
        raise ValueError(f"Cannot measure {owner} because targets are not one class label for each sample")
    return x, y


def sample_losses(result: Result, x: Tensor, y: Tensor) -> Losses:
    """Return the cross-entropy of each sample at the final model."""
    require("leakage", "result", result, Rule("a fedmos.Result", lambda v: isinstance(v, Result)))
    outputs = result.predict(x)
    losses: Losses = F.cross_entropy(outputs.double().cpu(), y.long().cpu(), reduction="none").numpy()
    return losses


def rank_test(small: Losses, others: Losses) -> tuple[float, float]:
    """Return the share of pairs in which `small` has the smaller value, and the p-value of such a share or more."""
    order = np.sort(others)
    below, upto = order.searchsorted(small, "left"), order.searchsorted(small, "right")
    auc = float(1 - (below + upto).mean() / (2 * len(others)))
    deviation = math.sqrt((len(small) + len(others) + 1) / (12 * len(small) * len(others)))
    return auc, 0.5 * math.erfc((auc - 0.5) / deviation / math.sqrt(2))
