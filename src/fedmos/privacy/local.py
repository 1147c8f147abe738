"""Noise that clients add themselves."""

from __future__ import annotations

from dataclasses import dataclass

from .mechanism import Mechanism


@dataclass(frozen=True)
class Local(Mechanism):
    """Local differential privacy: each client clips its uploads and adds noise before it sends them.

    No party has to be trusted: what a client sends in all its rounds is (ε, δ)-differentially private for any change of
    its data. The noise of each client has standard deviation `noise_multiplier` · `clip`, so that of
    a sum over n clients has √n times as much. Codecs (`uplink`) apply to the noisy uploads. Weights, aggregation rules
    and the server's step are those of a run without privacy. See docs/privacy.md.

    Args:
        clip: As in `Gaussian`.
        noise_multiplier: The standard deviation of a client's noise over `clip`. 0 adds no noise; ε is then infinite.
        delta: As in `Gaussian`.
        budget: As in `Gaussian`. ε is that of a client that takes part as often as the selector permits.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Cyclic(m=5), rounds=4, local_steps=2, batch_size=8,
        ...     privacy=fm.privacy.Local(clip=1.0, noise_multiplier=4.0, delta=1e-3),
        ... )
        >>> [round(record.epsilon, 2) for record in result.history]  # each client takes part in every second round
        [1.35, 1.35, 2.05, 2.05]
    """
