"""The table `data` of a configuration: a data set and its partition among clients."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from ..core.formatting import format_value, one_line
from ..core.validation import suggest
from ..data import Augment, Dataset, FederatedData, Normalize, datasets
from ..data.catalog import CATALOG
from ..data.natural import NATURAL
from . import registry
from .build import build, construct, find, takes
from .choices import Choice
from .errors import ConfigError, error_location, table_error
from .fields import (
    ByChannel,
    ByChannelPositive,
    Count,
    Flag,
    Folder,
    NonNegative,
    ObjectName,
    Pixels,
    Seed,
    Share,
    Strict,
)
from .own_classes import is_own, plain_name
from .own_data import AGREED, OwnDataConfig

AnyData = Dataset | FederatedData
OF_CLIENTS = "clients"
"""The name of data in a deployment whose clients have their own, which their own files describe."""


class AugmentConfig(Strict):
    """Random crops and flips of training images; see `fedmos.Augment`."""

    crop: Pixels = 4
    flip: Flag = True


class NormalizeConfig(Strict):
    """A normalisation of images in place of the data set's own; see `fedmos.Normalize`."""

    mean: ByChannel
    std: ByChannelPositive


class DataConfig(Strict):
    """A data set and its partition among clients."""

    name: ObjectName
    """A data set by name, or a function of the user that returns a `Dataset` or a `FederatedData`; "clients" in a
    deployment whose clients have their own data."""
    root: Folder | None = None
    clients: Count | None = None
    """Required unless the partition determines the number of clients, as Natural does."""
    partition: Choice = Choice(name="IID")
    normalize: NormalizeConfig | None = None
    augment: AugmentConfig | None = None
    test_samples: Count | None = None
    """Number of test samples to evaluate on, drawn at random; by default all."""
    holdout: Share | None = None
    """The share of each client's samples that become its own test samples; see `fedmos.Dataset.partition`."""
    unseen: Share | None = None
    """The share of clients that take no part in training; see `fedmos.FederatedData.split_clients`."""
    seed: Seed | None = None
    """Seed of the partition; by default the run's seed."""
    alpha: NonNegative | None = None
    beta: NonNegative | None = None
    """α and β of the synthetic data set."""
    arguments: dict[str, Any] | None = None
    """Arguments for a function of the user; it gets `root` and `seed` too if it has such parameters. With the name
    "clients", what all clients agree on of their own data: target, inputs, classes, categorical, missing, scale …"""

    @model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        synthetic, own = self.name == "synthetic", is_own(self.name)
        if self.of_clients:
            for field, declared in DataConfig.model_fields.items():
                if field not in ("name", "arguments") and getattr(self, field) != declared.default:
                    raise table_error(f"{field}: must be left out because each client has its own data")
            self._check_agreed()
            return self
        foreign = ("root", "normalize", "augment", "partition", "test_samples") if synthetic else ("alpha", "beta")
        for field in (*foreign, *(() if own else ("arguments",))):
            if getattr(self, field) != DataConfig.model_fields[field].default:
                raise table_error(f"{field}: has no part in the data set {one_line(self.name, 40)}")
        for field in ("normalize", "augment"):
            other = self.name in NATURAL or (self.name in CATALOG and CATALOG[self.name].kind != "images")
            if getattr(self, field) is not None and other:
                raise table_error(f"{field}: must be left out for {self.name}, which is not made of images")
        scheme = registry.partitions().get(self.partition.name)
        countable = scheme is not None and not hasattr(scheme, "sets_clients")
        if self.clients is None and countable and not synthetic and not own:
            raise table_error(f"clients: must be given for the partition {self.partition.name}")
        return self

    def _check_agreed(self) -> None:
        """Refuse arguments that are no fields of the clients' own tables of data, or have invalid values."""
        for name in self.arguments or {}:
            if name not in AGREED:
                raise table_error(f"arguments.{one_line(name, 40)}: must be one of {', '.join(AGREED)}")
        for source in ({"file": "own.csv"}, {"folder": "own"}):
            OwnDataConfig.model_validate(source).with_agreed(self.arguments or {})

    @property
    def of_clients(self) -> bool:
        """Whether only the clients have the data."""
        return self.name == OF_CLIENTS

    def load(self) -> AnyData | None:
        """Load the data set before it is partitioned; None for a data set that depends on the seed."""
        if self.of_clients or self.name == "synthetic" or self._takes_seed():
            return None
        if is_own(self.name):
            return self._declared(self._call_own({}))
        known = [*datasets.names(), "synthetic"]
        if self.name not in known:
            hint = suggest(self.name, known)
            raise ConfigError(f"data.name: must be one of {', '.join(known)}, got {format_value(self.name)}{hint}")
        with error_location("data"):
            return self._declared(datasets.load(self.name, self.root))

    def make(self, seed: int, dataset: AnyData | None = None) -> FederatedData:
        """Make the federation, from `dataset` if it has been loaded before."""
        if self.of_clients:
            raise ConfigError(
                "Cannot simulate data.name = 'clients' because each client has its own data; use fedmos deploy, or "
                "name a data set"
            )
        seed = seed if self.seed is None else self.seed
        data = self._divided(seed, dataset)
        if self.unseen is None:
            return data
        with error_location("data"):
            return data.split_clients(self.unseen, seed)[0]

    def has_own_tests(self, seed: int) -> bool:
        """Whether clients have test samples of their own; loads data that may have some without `holdout`."""
        if self.holdout is not None:
            return True
        return (is_own(self.name) or self.name in NATURAL) and self.make(seed).tests is not None

    def _divided(self, seed: int, dataset: AnyData | None) -> FederatedData:
        """Make the federation of all clients."""
        if self.name == "synthetic":
            given = {f: getattr(self, f) for f in ("alpha", "beta", "clients") if getattr(self, f) is not None}
            with error_location("data"):
                made = datasets.synthetic(**given, seed=seed)
                return made if self.holdout is None else made.hold_out(self.holdout, seed)
        scheme = build("data.partition", self.partition, registry.partitions())
        if not hasattr(scheme, "split"):
            raise ConfigError(f"data.partition.name: must have a method 'split', but {self.partition.title} has none")
        if dataset is None:
            dataset = self._declared(self._call_own({"seed": seed})) if self._takes_seed() else self.load()
        if isinstance(dataset, FederatedData):
            return self._partitioned_already(dataset, seed)
        assert dataset is not None
        with error_location("data.partition"):
            return dataset.partition(scheme, self.clients, seed, self.holdout)

    def _takes_seed(self) -> bool:
        return is_own(self.name) and takes("data.name", self.name, "seed")

    def _call_own(self, given: dict[str, Any]) -> AnyData:
        """Call the function of the user."""
        given |= (self.arguments or {}) | ({} if self.root is None else {"root": self.root})
        title = plain_name(self.name)
        made = construct("data", title, find("data.name", self.name, {}), given)
        if not isinstance(made, Dataset | FederatedData):
            got = f"{title} returns {format_value(made)}"
            raise ConfigError(f"data.name: must give a fedmos.Dataset or fedmos.FederatedData, but {got}")
        return made

    def _declared(self, data: AnyData) -> AnyData:
        """Return the data set with the normalisation, the augmentation and the test samples of the configuration."""
        if self.normalize is not None:
            scale = None if data.normalize is None else data.normalize.scale
            with error_location("data"):
                data = data.declare(normalize=Normalize(self.normalize.mean, self.normalize.std, scale))
        if self.augment is not None:
            data = data.declare(augment=Augment(crop=self.augment.crop, flip=self.augment.flip))
        return data.fewer_tests(self.test_samples) if isinstance(data, Dataset) and self.test_samples else data

    def _partitioned_already(self, data: FederatedData, seed: int) -> FederatedData:
        for field in ("clients", "partition", "test_samples"):
            if getattr(self, field) != DataConfig.model_fields[field].default:
                raise ConfigError(
                    f"data.{field}: must be left out because {plain_name(self.name)} returns a federation, which is "
                    "partitioned already"
                )
        if self.holdout is None:
            return data
        with error_location("data"):
            return data.hold_out(self.holdout, seed)
