"""Tables of a configuration that describe a part of a run: its data, its simulated system, its deployment."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

import fedmos as fm

from ..core.formatting import one_line
from ..data.catalog import CATALOG
from . import registry as registry
from .deploy import Deploy
from .fields import (
    AtLeastOne,
    ByChannel,
    ByChannelPositive,
    Choice,
    Count,
    Flag,
    Folder,
    Fraction,
    Name,
    NonNegative,
    Pixels,
    Positive,
    Profile,
    Seed,
    Strict,
    build,
    several,
    whole,
)
from .text import located


class AugmentConfig(Strict):
    """Random crops and flips in training; see `fedmos.Augment`."""

    crop: Pixels = 4
    flip: Flag = True


class NormalizeConfig(Strict):
    """Another normalisation of images than the data set's own; see `fedmos.Normalize`."""

    mean: ByChannel
    std: ByChannelPositive


class DataConfig(Strict):
    """A data set, and how it is divided."""

    name: Name
    root: Folder | None = None
    clients: Count | None = None
    """Needed unless the partition brings its own, as Natural does."""
    partition: Choice = Choice(name="IID")
    normalize: NormalizeConfig | None = None
    augment: AugmentConfig | None = None
    test_samples: Count | None = None
    """Evaluate on so many test samples, drawn at random; by default on all."""
    seed: Seed | None = None
    """Decides the split; by default the run's seed."""
    alpha: NonNegative | None = None
    beta: NonNegative | None = None
    """α and β of the synthetic data set."""

    @model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        synthetic = self.name == "synthetic"
        foreign = ("root", "normalize", "augment", "partition", "test_samples") if synthetic else ("alpha", "beta")
        for field in foreign:
            if getattr(self, field) != DataConfig.model_fields[field].default:
                raise whole(f"{field}: has no part in the data set {one_line(self.name, 40)}")
        for field in ("normalize", "augment"):
            if getattr(self, field) is not None and self.name in CATALOG and CATALOG[self.name].kind != "images":
                raise whole(f"{field}: must be left out for {self.name}, which is not made of images")
        scheme = registry.partitions().get(self.partition.name)
        if self.clients is None and not synthetic and scheme is not None and not hasattr(scheme, "sets_clients"):
            raise whole(f"clients: must be given for the partition {self.partition.name}")
        return self

    def load(self) -> fm.Dataset | None:
        """The data set before it is divided; None for one that comes divided."""
        if self.name == "synthetic":
            return None
        with located("data"):
            dataset = fm.datasets.load(self.name, self.root)
        if self.normalize is not None:
            scale = 255.0 if dataset.normalize is None else dataset.normalize.scale
            with located("data"):
                dataset = dataset.declare(normalize=fm.Normalize(self.normalize.mean, self.normalize.std, scale))
        if self.augment is not None:
            dataset = dataset.declare(augment=fm.Augment(crop=self.augment.crop, flip=self.augment.flip))
        return dataset if self.test_samples is None else dataset.fewer_tests(self.test_samples)

    def make(self, seed: int, dataset: fm.Dataset | None = None) -> fm.FederatedData:
        """The federation; of a data set that was loaded before, if one is given."""
        seed = seed if self.seed is None else self.seed
        if self.name == "synthetic":
            given = {f: getattr(self, f) for f in ("alpha", "beta", "clients") if getattr(self, f) is not None}
            with located("data"):
                return fm.datasets.synthetic(**given, seed=seed)
        scheme = build("data.partition", self.partition, registry.partitions())
        dataset = dataset or self.load()
        assert dataset is not None
        with located("data.partition"):
            return dataset.partition(scheme, self.clients, seed)


class SystemConfig(Strict):
    """Speeds, bandwidths and deadlines; see `fedmos.System`."""

    speed: Profile = 1000.0
    down: Profile = 1e6
    up: Profile = 1e6
    deadline: Positive | None = None
    over_select: AtLeastOne = 1.0
    quorum: Fraction = 0.0

    def make(self) -> fm.System:
        fields = {name: getattr(self, name) for name in SystemConfig.model_fields}
        for name in ("speed", "down", "up"):
            if isinstance(fields[name], Choice):
                fields[name] = build(f"system.{name}", fields[name], registry.profiles())
        with located("system"):
            return fm.System(**fields)


class DeployConfig(Strict):
    """Options of a deployment, which a simulation ignores; see `fedmos.flower.Deploy`."""

    clients: Annotated[list[Name], several] | None = None
    wait: Positive = 120.0
    rejoin: Positive = 60.0
    poll: Positive = 0.1
    norm_bound: Positive | None = None
    train_metrics: Flag = False

    def make(self) -> Deploy:
        with located("deploy"):
            return Deploy(**{name: getattr(self, name) for name in DeployConfig.model_fields})
