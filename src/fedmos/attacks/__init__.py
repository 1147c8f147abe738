"""Attacks of hostile clients, to study aggregation rules with in a simulation.

Example:
    >>> attack = fm.attacks.SignFlip(scale=5.0, share=0.2)
    >>> result = fm.run(
    ...     model, data, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=8,
    ...     attack=attack, aggregation=fm.aggregation.Median(),
    ... )
    >>> len(result.info["hostile"])
    2
"""

from .attack import Attack
from .on_data import BackdoorPixel, LabelFlip
from .on_uploads import ALIE, GaussianNoise, InnerProduct, SignFlip

__all__ = ["ALIE", "Attack", "BackdoorPixel", "GaussianNoise", "InnerProduct", "LabelFlip", "SignFlip"]
