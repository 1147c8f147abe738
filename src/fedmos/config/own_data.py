"""Samples that one machine of a deployment has itself: a client's own data, or the server's test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from ..core.formatting import format_value, one_line
from ..data import Dataset, FederatedData
from ..data.importers.encoding import CategoryColumn
from ..data.importers.fit import EncodingOptions
from ..data.importers.folder import dataset_from_folder
from ..data.importers.frame import dataset_from_csv, dataset_from_frame
from .build import construct, find, takes
from .errors import ConfigError, error_location, table_error
from .fields import Count, Flag, Folder, Name, Numbers, ObjectName, Strict
from .own_classes import plain_name

_FITTING = {
    "file": (*("target", "inputs", "classes", "categorical", "missing", "one_hot", "dtype", "scale", "delimiter"),),
    "folder": ("classes", "size"),
    "function": ("arguments",),
}
"""The fields that fit each source."""
AGREED = (*_FITTING["file"], "size")
"""The fields that the configuration of a run can set for all machines."""


class InputColumn(NamedTuple):
    """A column of a table, as inputs of a model."""

    name: str
    features: list[str]
    """The names of the inputs that it becomes."""
    values: int
    """How many inputs, or numbers of categories, it has."""


class OwnSamples(NamedTuple):
    """Samples, and the columns of their table."""

    samples: tuple[Tensor, Tensor] | FederatedData
    columns: Sequence[InputColumn] = ()
    """Empty for samples that are no table."""


class OwnDataConfig(Strict):
    """The samples of one machine; the table `[data]` of a client's file, and `[test]` of the server's.

    Encodings are declared, never fitted: each client would fit another one, and the model would read its inputs in
    different ways.
    """

    file: Folder | None = None
    """A CSV file (.csv) with a header line, or a parquet file (.parquet)."""
    folder: Folder | None = None
    """A folder of images, CLASS/image."""
    function: ObjectName | None = None
    """A function of the user, "mine.py:load", that returns (x, y) or a `FederatedData` of one client."""
    arguments: dict[str, Any] | None = None
    """Arguments of the function."""
    target: Name | None = None
    """The column of targets."""
    inputs: list[Name] | None = None
    """The columns of inputs, in the order of the model's inputs; by default all others."""
    classes: list[Name] | None = None
    """The names of the classes in the order of their numbers; needed where targets are words, and for folders."""
    categorical: dict[str, list[str]] | None = None
    """The categories of each column of words."""
    missing: float | Literal["category"] | dict[str, float | Literal["category"]] | None = None
    """The number in place of missing values, or "category" for words; for all columns or by column."""
    one_hot: Flag = True
    dtype: Literal["float32", "float64", "int64"] = "float32"
    scale: dict[str, Numbers] | None = None
    """Two numbers [m, s] by column: the input is (value − m) / s."""
    delimiter: str = ","
    size: Count | None = None
    """Height and width of images."""

    @model_validator(mode="after")
    def _one_source(self) -> OwnDataConfig:
        sources = [name for name in _FITTING if getattr(self, name) is not None]
        if len(sources) != 1:
            got = " and ".join(sources) or "none"
            raise table_error(f"file: exactly one of file, folder and function must be given, got {got}")
        for name, field in OwnDataConfig.model_fields.items():
            if name not in (sources[0], *_FITTING[sources[0]]) and getattr(self, name) != field.default:
                raise table_error(f"{name}: must be left out beside '{sources[0]}'")
        if self.file is not None and Path(self.file).suffix.lower() not in (".csv", ".parquet"):
            raise table_error(f"file: must be the path of a .csv or .parquet file, got {format_value(self.file)}")
        for name, numbers in (self.scale or {}).items():
            if len(numbers) != 2 or numbers[1] <= 0:
                raise table_error(f"scale.{one_line(name, 40)}: must be [m, s] with s > 0, got {numbers}")
        return self

    def with_agreed(self, agreed: Mapping[str, Any]) -> OwnDataConfig:
        """Return this table with the fields that a run's configuration sets for all machines, unless it has them."""
        own = self.model_dump(exclude_unset=True)
        (source,) = (name for name in _FITTING if getattr(self, name) is not None)
        return OwnDataConfig.model_validate({k: v for k, v in agreed.items() if k in _FITTING[source]} | own)

    def load(self, beside: Path, client: str = "") -> tuple[Tensor, Tensor] | FederatedData:
        """Read the samples; see `read`."""
        return self.read(beside, client).samples

    def read(self, beside: Path, client: str = "") -> OwnSamples:
        """Read the samples, and the columns of a table.

        Args:
            beside: The folder to which relative paths refer.
            client: The name of the client, for a function with a parameter of this name.

        Raises:
            ConfigError: If they cannot be read. The text may quote the data.
        """
        with error_location("data"):
            if self.file is not None:
                return self._table(beside / self.file)
            if self.folder is not None:
                if self.classes is None:
                    raise ValueError("data: 'classes' must be given with 'folder', in the order of their numbers")
                dataset = dataset_from_folder(beside / self.folder, self.size)
                x = (
                    dataset.normalize(_tensor(dataset.x_train), torch.float32)
                    if dataset.normalize
                    else _tensor(dataset.x_train)
                )
                return OwnSamples((x, _tensor(self._numbered(dataset))))
            made: tuple[Tensor, Tensor] | FederatedData = self._call(beside, client)
            return OwnSamples(made)

    def files(self, beside: Path) -> list[Path]:
        """Return the files and folders that are read."""
        return [beside / path for path in (self.file, self.folder) if path is not None]

    def _table(self, path: Path) -> OwnSamples:
        options = EncodingOptions(self.categorical, self.missing, self.one_hot, self.dtype)
        if path.suffix.lower() == ".csv":
            try:
                dataset = dataset_from_csv(path, None, self.target, self.inputs, None, options, self.delimiter)
            except ValueError:
                if _is_utf8(path):
                    raise
                raise ConfigError(f"Cannot read {path} because it is not UTF-8 text; save it as UTF-8") from None
        else:
            dataset = dataset_from_frame(path, None, self.target, self.inputs, None, options)
        x = _tensor(dataset.x_train)
        if self.scale:
            features = [] if dataset.encoding is None else dataset.encoding.features
            for name, (m, s) in self.scale.items():
                if name not in features:
                    raise ValueError(f"data: 'scale' must name one of {', '.join(features)}, got {format_value(name)}")
                x[:, features.index(name)] = (x[:, features.index(name)] - m) / s
        return OwnSamples((x, _tensor(self._numbered(dataset))), _columns(dataset))

    def _numbered(self, dataset: Dataset) -> np.ndarray:
        """Return the targets, with the numbers of classes that are declared."""
        y = np.asarray(dataset.y_train)
        if dataset.labels is None:
            if self.classes is not None:
                raise ValueError("data: 'classes' must be left out because the targets are numbers")
            return y
        if self.classes is None:
            words = ", ".join(dataset.labels[:10])
            raise ValueError(
                f"data: 'classes' must name the classes in the order of their numbers, because the targets are {words}"
            )
        unknown = sorted(set(dataset.labels) - set(self.classes))
        if unknown:
            raise ValueError(f"data: 'classes' must name all classes, got none for {format_value(unknown[0])}")
        numbers: np.ndarray = np.array([self.classes.index(label) for label in dataset.labels], np.int64)[y]
        return numbers

    def _call(self, beside: Path, client: str) -> Any:
        assert self.function is not None
        source, colon, name = self.function.rpartition(":")
        where = f"{beside / source}{colon}{name}" if source.endswith(".py") else self.function
        make = find("data.function", where, {})
        given = ({"client": client} if takes("data.function", where, "client") else {}) | (self.arguments or {})
        made = construct("data", plain_name(self.function), make, given)
        if not isinstance(made, FederatedData) and not (isinstance(made, tuple) and len(made) == 2):
            raise ConfigError(
                f"data.function: must give (x, y) or a fedmos.FederatedData, but {plain_name(self.function)} returns "
                f"{format_value(made)}"
            )
        return made


def _columns(dataset: Dataset) -> list[InputColumn]:
    """Return the columns of a table in the order of the model's inputs."""
    if dataset.encoding is None:
        return []
    return [
        InputColumn(str(c.name), c.features, len(c.categories) if isinstance(c, CategoryColumn) else 1)
        for c in dataset.encoding.columns
    ]


def _is_utf8(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return all(True for _ in file)
    except UnicodeDecodeError:
        return False


def _tensor(values: np.ndarray) -> Tensor:
    """Return a tensor with a copy of an array, which may be read-only."""
    return torch.from_numpy(np.array(values))
