"""What a run records about its model and inputs, so that a saved model predicts as it was evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from ..core.architecture import architecture_hash, constants_hash
from ..core.flat_model import FlatModel
from ..core.input_layout import InputLayout
from ..core.personal_parameters import recorded_names
from ..core.statistics_layout import CLIENT_MODES
from ..data.importers.encoding import Encoding
from ..data.normalize import Normalize
from ..engine.task import Task
from .spec import RunSpec

KEY = "inference"
"""The entry of a run's info that holds the record."""


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """The architecture of a model and the inputs that it was trained on."""

    normalize: Normalize | None
    """The normalisation that evaluation applied; None for no normalisation."""
    shape: tuple[int, ...] | None = None
    """The shape of a sample; None if it is not known."""
    dtype: torch.dtype | None = None
    """The dtype of the federation's inputs; None if it is not known."""
    encoding: Encoding | None = None
    """How the columns of a table became the inputs."""
    architecture: str | None = None
    """See `architecture_hash`."""
    constants: str | None = None
    """See `constants_hash`."""
    layout: InputLayout | None = None
    """The inputs of a model that takes several."""

    @classmethod
    def of(cls, spec: RunSpec, task: Task) -> ModelRecord:
        """Describe the model and the inputs of a run."""
        data, model = spec.data, spec.trained_model
        # The model may get the integers of a table as real numbers; see `with_accepted_inputs`.
        as_real = data.normalize is None and task.data.x.is_floating_point()
        return cls(
            normalize=data.normalize,
            shape=tuple(data.x.shape[1:]),
            dtype=spec.dtype if as_real and not data.x.is_floating_point() else data.x.dtype,
            encoding=data.encoding,
            architecture=architecture_hash(model),
            constants=constants_hash(model, spec.dtype, not spec.has_client_statistics, spec.personal_names),
            layout=data.layout,
        )

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> ModelRecord | None:
        """Read the record of a run; None for a run of an earlier version, which has none."""
        table = info.get(KEY)
        if table is None:
            return None
        normalize, dtype, shape = (table[name] for name in ("normalize", "dtype", "shape"))
        return cls(
            normalize=None if normalize is None else Normalize(**normalize),
            shape=None if shape is None else tuple(shape),
            dtype=None if dtype is None else getattr(torch, dtype),
            encoding=None if table.get("encoding") is None else Encoding.from_dict(table["encoding"]),
            architecture=table["architecture"],
            constants=table["constants"],
            layout=InputLayout.from_json(table["layout"]) if "layout" in table else None,
        )

    @classmethod
    def required(cls, info: Mapping[str, Any]) -> ModelRecord:
        """Read the record of a run whose inputs must be known."""
        record = cls.from_info(info)
        if record is None:
            raise ValueError(
                "Cannot predict because the run was saved by an earlier version, which did not record the "
                "normalisation of its inputs; use Result.load(path, model, normalize=data.normalize)"
            )
        return record

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON."""
        return {
            "normalize": None if self.normalize is None else asdict(self.normalize),
            "shape": None if self.shape is None else list(self.shape),
            "dtype": None if self.dtype is None else str(self.dtype).removeprefix("torch."),
            "encoding": None if self.encoding is None else self.encoding.to_dict(),
            "architecture": self.architecture,
            "constants": self.constants,
            **({} if self.layout is None else {"layout": self.layout.to_json()}),
        }


def check_same_model(model: nn.Module, info: Mapping[str, Any]) -> None:
    """Refuse a model that is not the one of the run.

    Raises:
        ValueError: If its architecture differs, or the values of its buffers or frozen parameters do.
    """
    record, dtype = ModelRecord.from_info(info), dtype_of(info)
    if record is not None and record.architecture is not None:
        same = architecture_hash(model) == record.architecture
    elif info.get("model") is not None:  # a folder of an earlier version
        same = FlatModel(model, torch.device("cpu"), dtype).fingerprint() == info["model"]
    else:
        same = True
    if not same:
        raise ValueError(
            f"Cannot load the result into this {type(model).__name__} because its architecture is not the run's: its "
            "layers, parameters or attributes differ; use the model that was given to the run"
        )
    given = info.get("batchnorm") not in CLIENT_MODES
    personal = recorded_names(model, info)
    if record is not None and record.constants not in (None, constants_hash(model, dtype, given, personal)):
        what = "buffers, frozen parameters or parameters that stay with clients" if personal else None
        raise ValueError(
            f"Cannot load the result into this {type(model).__name__} because its "
            f"{what or 'buffers or frozen parameters'} have other values than the run's, and a result holds the "
            f"{'shared' if personal else 'trained'} parameters only; use the model that was given to the run"
        )


def dtype_of(info: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype of a run."""
    dtype: torch.dtype = getattr(torch, info["dtype"])
    return dtype
