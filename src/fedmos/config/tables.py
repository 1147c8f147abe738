"""Tables of a configuration: a run's simulated system, its deployment, and other options with fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from ..core.personal_parameters import Personal
from ..core.validation import whole_number
from ..engine.buffer import Buffer
from ..engine.simulated_clock import System
from ..evaluation.evaluate_clients import EvaluateClients
from . import registry
from .build import build
from .choices import Choice, Profile
from .deploy import Deploy
from .errors import error_location
from .fields import (
    AtLeastOne,
    Count,
    Flag,
    Fraction,
    Name,
    NonNegative,
    Positive,
    Strict,
    non_empty_list,
    obeys,
)


class EvaluateClientsConfig(Strict):
    """How clients are evaluated on their own test samples; see `fedmos.EvaluateClients`."""

    every: Count = 1
    sample: Count | None = None
    finetune_steps: Annotated[int, obeys(whole_number)] = 0

    def make(self) -> EvaluateClients:
        """Construct the option."""
        with error_location("evaluate_clients"):
            return EvaluateClients(every=self.every, sample=self.sample, finetune_steps=self.finetune_steps)


EveryOrTable = Annotated[
    Annotated[Count, Tag("value")] | Annotated[EvaluateClientsConfig, Tag("table")],
    Discriminator(lambda v: "table" if isinstance(v, dict | EvaluateClientsConfig) else "value"),
]
"""A number of rounds, or a table."""


class SystemConfig(Strict):
    """Speeds, bandwidths and deadlines; see `fedmos.System`."""

    speed: Profile = 1000.0
    down: Profile = 1e6
    up: Profile = 1e6
    deadline: Positive | None = None
    over_select: AtLeastOne = 1.0
    quorum: Fraction = 0.0
    dropout: Fraction = 0.0

    def make(self) -> System:
        """Construct the system."""
        fields = {name: getattr(self, name) for name in SystemConfig.model_fields}
        for name in ("speed", "down", "up"):
            if isinstance(fields[name], Choice):
                fields[name] = build(f"system.{name}", fields[name], registry.profiles())
        with error_location("system"):
            return System(**fields)


class PersonalConfig(Strict):
    """Parameters that stay with each client, trained first; see `fedmos.Personal`."""

    patterns: Annotated[list[Name], non_empty_list]
    steps: Count | None = None

    def make(self) -> Personal:
        """Construct the option."""
        return Personal(tuple(self.patterns), self.steps)


PersonalTable = Annotated[
    Annotated[list[Name], non_empty_list, Tag("list")] | Annotated[PersonalConfig, Tag("table")],
    Discriminator(lambda v: "table" if isinstance(v, Mapping | PersonalConfig) else "list"),
]
"""Patterns of names, or a table."""


class BufferConfig(Strict):
    """Asynchronous rounds; see `fedmos.Buffer`."""

    size: Count
    concurrency: Count
    staleness: NonNegative = 0.5

    def make(self, where: str = "buffer") -> Buffer:
        """Construct the buffer."""
        with error_location(where):
            return Buffer(**self.model_dump())


class DeployConfig(Strict):
    """Options of a deployment, which a simulation ignores; see `fedmos.flower.Deploy`."""

    clients: Annotated[list[Name], non_empty_list] | None = None
    keys: dict[str, Name] | Literal["learn", "off"] = "learn"
    samples: dict[str, Count] | None = None
    max_samples: Count = 10**7
    samples_factor: AtLeastOne = 100.0
    wait: Positive = 120.0
    rejoin: Positive = 60.0
    outage_limit: Positive | Literal["off"] = 86400.0
    poll: Positive = 0.1
    norm_bound: Positive | Literal["adaptive", "off"] | None = "adaptive"
    norm_factor: Positive = 100.0
    quarantine: Count | Literal["off"] = 3
    quarantine_rounds: Count | Literal["off"] = 20
    keep_checkpoints: Count = 5
    train_metrics: Flag = False
    compress: Flag = False
    metrics: Name | None = None
    log: Literal["text", "json"] | None = None

    def make(self) -> Deploy:
        """Construct the options of the deployment."""
        with error_location("deploy"):
            return Deploy(**{name: getattr(self, name) for name in DeployConfig.model_fields})
