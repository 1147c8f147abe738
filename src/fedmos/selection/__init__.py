"""Client selectors, one file per scheme, and availability models.

Constructors raise ValueError if a parameter is out of range. In the examples of the docstrings, `data` is a
`FederatedData` of ten clients and `model` a network for its samples.
"""

from .acs import ACS
from .active import ActiveFL
from .availability import Alternating, Always, Availability, RandomAvailability, Trace
from .bernoulli import Bernoulli
from .cacs import CACS
from .cyclic import Cyclic
from .full import FixedCohorts, Full
from .md import MD
from .oort import Oort
from .power_of_choice import PowerOfChoice
from .uniform import Uniform

__all__ = [
    "ACS",
    "CACS",
    "MD",
    "ActiveFL",
    "Alternating",
    "Always",
    "Availability",
    "Bernoulli",
    "Cyclic",
    "FixedCohorts",
    "Full",
    "Oort",
    "PowerOfChoice",
    "RandomAvailability",
    "Trace",
    "Uniform",
]
