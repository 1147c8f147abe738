"""Every way of choosing a round's clients, one file per scheme."""

from .acs import ACS
from .full import FixedCohorts, Full
from .md import MD
from .uniform import Uniform

__all__ = ["ACS", "MD", "FixedCohorts", "Full", "Uniform"]
