"""What a trained model, or one update, reveals about clients: attacks as a diagnostic of privacy.

Example:
    >>> found = fm.leakage.canary_exposure(
    ...     model, data, fm.FedAvg(lr=0.5), fm.Full(), canaries=fm.leakage.Canaries(4, references=20),
    ...     rounds=30, local_steps=5, batch_size=8,
    ... )
    >>> found.most
    4.39...
"""

from .canaries import Canaries, Exposure, canary_exposure
from .inversion import Inversion, gradient_inversion
from .membership import Membership, membership

__all__ = ["Canaries", "Exposure", "Inversion", "Membership", "canary_exposure", "gradient_inversion", "membership"]
