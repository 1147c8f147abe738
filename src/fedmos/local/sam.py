"""Sharpness-aware minimisation."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.validation import check, non_negative


@dataclass(frozen=True)
class SAM:
    """SAM (Foret et al., ICLR 2021): every gradient g(y) of a client becomes g(y + ρ g(y)/‖g(y)‖).

    Both gradients are of the same batch. The norm is over all parameters; a gradient of zero is not perturbed. The
    perturbation is that of the loss alone: clipping and weight decay of the run apply afterwards, the latter at y. The
    reported loss is the one at y. Both gradients are counted in the run's cost and on the simulated clock.

    SAM acts on the gradients, before the algorithm sees them, and so composes with every algorithm. It has no state.

    Args:
        rho: Radius ρ of the perturbation.

    Raises:
        ValueError: If `rho` is not ≥ 0.

    Example:
        >>> algorithm, selection, local = fm.FedMoS(lr=0.1), fm.Uniform(m=3), fm.local.SAM(rho=0.05)
        >>> result = fm.run(model, data, algorithm, selection, rounds=2, local_steps=2, batch_size=8, local=local)
    """

    rho: float = 0.05

    def __post_init__(self) -> None:
        check(self, rho=non_negative)
