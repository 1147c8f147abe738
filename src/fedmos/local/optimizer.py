"""The contract of a local optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Field, Layers, Vectors
from ..core.declared_fields import check_fields
from ..core.equality import EqualByFields
from ..core.validation import boolean, check


@dataclass(frozen=True, kw_only=True)
class LocalOptimizer(EqualByFields):
    """Base class of local optimisers: a direction in, a direction out.

    In each local step the algorithm gives a direction d, by default the gradient. The optimiser makes d' of it, and the
    client steps y ← y − lr · d'. Several optimisers form a chain, in which each gets the result of the one before.

    Subclass it as a frozen dataclass, declare `state` as an algorithm declares its own, and define `update`. State
    starts at zero. As in an algorithm, the same body serves one client, with vectors of shape (D,), and a cohort,
    (M, D); a number is a column, (1,) or (M, 1).

    Args:
        keep: Whether each client keeps the state between its rounds; otherwise it starts at zero in every round.
        average: Whether the server averages the state over the cohort, Σ_S w_i s_i / Σ_S w_i, and sends the mean down
            in the next round. This adds the state to the bytes of uploads and downloads.

    Raises:
        ValueError: If both `keep` and `average` are true, or there is no state to keep or average.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class SignMomentum(fm.local.LocalOptimizer):
        ...     beta: float = 0.9
        ...     state = ("m",)
        ...     def update(self, d, y, s, lr, layers):
        ...         m = self.beta * s["m"] + (1 - self.beta) * d
        ...         return m.sign(), {"m": m}
        >>> local = SignMomentum(keep=True)
        >>> algorithm, selection = fm.FedAvg(lr=0.001), fm.Uniform(m=3)
        >>> result = fm.run(model, data, algorithm, selection, rounds=2, local_steps=2, batch_size=8, local=local)
        >>> result.client_state(result.history[0].cohort[0])["local.m"].shape
        torch.Size([650])
    """

    keep: bool = False
    average: bool = False

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Check `keep` and `average`; called again before a run, for subclasses with their own `__post_init__`."""
        check(self, keep=boolean, average=boolean)
        owner = type(self).__name__
        check_fields(owner, "state", self.state)
        if self.keep and self.average:
            raise ValueError(
                f"Cannot use {owner} with keep=True and average=True because its state is either the client's or the "
                "server's; use one of them"
            )
        if (self.keep or self.average) and not self.state:
            word = "keep" if self.keep else "average"
            raise ValueError(f"{owner}: '{word}' must be False where the optimiser has no state, got True")

    @property
    def state(self) -> Sequence[Field]:
        """The state of the optimiser, declared as in `Algorithm`: a name for a vector (D,), or (name, shape)."""
        return ()

    def update(self, d: Tensor, y: Tensor, s: Vectors, lr: Tensor, layers: Layers) -> tuple[Tensor, Vectors]:
        """Transform the direction of a local step.

        Args:
            d: The direction of the algorithm, or of the optimiser before this one in a chain.
            y: The client's model before the step.
            s: The state by name.
            lr: The step size of the round.
            layers: The parameters of the model by name; `layers.split(d)` views a vector as tensors.

        Returns:
            The new direction d', of the shape of y, and the whole new state.
        """
        raise TypeError(f"{type(self).__name__} must define update")
