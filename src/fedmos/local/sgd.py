"""SGD with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Field, Layers, Vectors
from ..core.validation import boolean, check, non_negative
from .optimizer import LocalOptimizer


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """SGD as `torch.optim.SGD`, with momentum μ and weight decay λ.

    d ← d + λ y;  m ← μ m + d;  d' = m, or d + μ m with `nesterov`.

    With the defaults the step is the plain one, y ← y − lr · d.

    Args:
        momentum: Momentum μ.
        nesterov: Whether to use Nesterov's momentum.
        weight_decay: Factor λ of the L2 penalty, which passes through the momentum.
        keep: Whether each client keeps m between its rounds.
        average: Whether the server averages m over the cohort and sends it down.

    Raises:
        ValueError: If a value is out of range, or `nesterov`, `keep` or `average` is given without momentum.

    Example:
        >>> local = fm.local.SGD(momentum=0.9, nesterov=True)
        >>> algorithm, selection = fm.FedAvg(lr=0.01), fm.Uniform(m=3)
        >>> result = fm.run(model, data, algorithm, selection, rounds=2, local_steps=2, batch_size=8, local=local)
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check(self, momentum=non_negative, nesterov=boolean, weight_decay=non_negative)
        if self.nesterov and not self.momentum:
            raise ValueError("SGD: 'nesterov' must be False where 'momentum' is 0, got True")
        super().__post_init__()

    @property
    def state(self) -> Sequence[Field]:
        return ("m",) if self.momentum else ()

    def update(self, d: Tensor, y: Tensor, s: Vectors, lr: Tensor, layers: Layers) -> tuple[Tensor, Vectors]:
        if self.weight_decay:
            d = d + self.weight_decay * y
        if not self.momentum:
            return d, {}
        m = self.momentum * s["m"] + d
        return d + self.momentum * m if self.nesterov else m, {"m": m}
