"""Local optimisers: what a client makes of the direction that the algorithm gives, `local=` of `fm.run`.

Example:
    >>> result = fm.run(
    ...     model, data, fm.FedAvg(lr=0.01), fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8,
    ...     local=[fm.local.SAM(rho=0.05), fm.local.AdamW(weight_decay=0.01)],
    ... )
    >>> result.info["local"]
    ['SAM(rho=0.05)', 'AdamW(keep=False, average=False, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.01)']
"""

from .adam import Adam, AdamW
from .muon import Muon
from .optimizer import LocalOptimizer
from .sam import SAM
from .sgd import SGD

__all__ = ["SAM", "SGD", "Adam", "AdamW", "LocalOptimizer", "Muon"]
