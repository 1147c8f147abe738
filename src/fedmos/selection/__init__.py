"""Client selectors, one file per scheme, and availability models.

Constructors raise ValueError if a parameter is out of range. In the examples of the docstrings, `data` is a
`FederatedData` of ten clients and `model` a network for its samples.
"""

from .acs import ACS
from .active import ActiveFL
from .availability import Alternating, Always, Availability, RandomAvailability, Trace
from .bernoulli import Bernoulli
from .cacs import CACS
from .clustered import Clustered
from .cyclic import Cyclic
from .delta import DELTA
from .fedcor import FedCor
from .full import FixedCohorts, Full
from .md import MD
from .ocs import OCS
from .oort import Oort
from .power_of_choice import PowerOfChoice
from .ucb import UCB
from .uniform import Uniform

__all__ = [
    "ACS",
    "CACS",
    "DELTA",
    "MD",
    "OCS",
    "UCB",
    "ActiveFL",
    "Alternating",
    "Always",
    "Availability",
    "Bernoulli",
    "Clustered",
    "Cyclic",
    "FedCor",
    "FixedCohorts",
    "Full",
    "Oort",
    "PowerOfChoice",
    "RandomAvailability",
    "Trace",
    "Uniform",
]
