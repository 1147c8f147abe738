"""Client-level differential privacy, `privacy=` of `fm.run`, and the noise that a guarantee needs.

Example:
    >>> result = fm.run(
    ...     model, data, fm.FedAvg(lr=0.1), fm.Bernoulli(rate=0.3), rounds=2, local_steps=2, batch_size=8,
    ...     privacy=fm.privacy.Gaussian(clip=1.0, noise_multiplier=2.0, delta=1e-3),
    ... )
    >>> [round(record.epsilon, 2) for record in result.history]
    [0.66, 0.87]
"""

from .accounting import epsilon, plan
from .discrete import DiscreteGaussian
from .gaussian import Gaussian
from .local import Local
from .matrix_factorization import MatrixFactorization

__all__ = ["DiscreteGaussian", "Gaussian", "Local", "MatrixFactorization", "epsilon", "plan"]
