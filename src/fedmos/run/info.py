"""What a run records about itself: in checkpoints, in its folder and in `Result.info`."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from ..core.own_code import own_files
from ..core.version import __version__
from ..engine.execution_plan import ExecutionPlan
from ..engine.task import Task
from .model_record import ModelRecord
from .options import options_of
from .spec import RunSpec


@dataclass(kw_only=True, eq=False)
class RunInfo(Mapping[str, Any]):
    """A run's options, execution and outcome.

    It is also a mapping with the keys that checkpoints have: the options of the run and all fields that are not None.

    Example:
        >>> result.info["engine"], result.info["local_steps"], "diverged" in result.info
    """

    options: dict[str, Any]
    """Recorded options by name, in a form to read, e.g. `{"algorithm": "FedAvg(lr=0.1)", "seed": 0}`."""
    option_values: dict[str, Any] | None = None
    """Options that a resumed run must have as before, in a form to compare; see `structured`."""
    clients: int | None = None
    parameters: int | None = None
    device: str | None = None
    versions: dict[str, str] | None = None
    model: str | None = None
    """Fingerprint of the model."""
    data: str | None = None
    """Fingerprint of the data."""
    own_code: dict[str, str] | None = None
    """Files of the user's classes that the configuration names, with the hashes of their content."""
    inference: dict[str, Any] | None = None
    """Normalisation and shape of the inputs, and hashes of the model; see `ModelRecord`."""
    engine: str | None = None
    compiled: bool | None = None
    chunk: int | None = None
    """Number of clients that train at once."""
    engine_why: str | None = None
    """Why this engine was chosen."""
    blockwise: bool | None = field(default=None, metadata={"key": "apart"})
    """True if a cohort is computed in blocks that do not depend on the number of ranks."""
    narrowed: str | None = None
    """Why fewer clients train at once than planned."""
    recovered: str | None = None
    """The round from which a run continued because newer checkpoints were damaged."""
    client_accuracy: dict[str, Any] | None = None
    hostile: list[int] | None = None
    """The hostile clients of the option `attack`."""
    diverged: str | None = None
    """The error that ended the run."""
    stopped: str | None = None
    """What ended the run before its last round: a callback, or the privacy budget."""
    light: bool | None = None
    """True if only model and history of the finished run were kept."""
    checkpoints: dict[str, float] | None = None
    """Number of checkpoints written, and the seconds they took."""
    compile_seconds: float | None = None
    unknown: dict[str, Any] = field(default_factory=dict)
    """Entries that another version of fedmos recorded."""

    @classmethod
    def of(cls, spec: RunSpec, task: Task) -> RunInfo:
        """Describe a run before it starts."""
        return cls(
            options=spec.recorded(),
            option_values=spec.values_to_compare(),
            clients=len(spec.data),
            parameters=task.model.size,
            device=str(task.model.device),
            versions={"fedmos": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
            model=task.model.fingerprint(),
            data=spec.data.fingerprint(),
            own_code=own_files(getattr(spec, name) for name in options_of(spec)) or None,
            inference=ModelRecord.of(spec, task).to_json(),
        )

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> RunInfo:
        """Read the info of a checkpoint."""
        names = {_key(f): f.name for f in fields(cls) if f.name not in _NOT_KEYS}
        recorded = [name for name, option in options_of(RunSpec).items() if option.resume != "not recorded"]
        return cls(
            options={key: value for key, value in table.items() if key in recorded},
            **{names[key]: value for key, value in table.items() if key in names},
            unknown={key: value for key, value in table.items() if key not in names and key not in recorded},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the entries that checkpoints store."""
        own = {_key(f): getattr(self, f.name) for f in fields(self) if f.name not in _NOT_KEYS}
        return self.options | {key: value for key, value in own.items() if value is not None} | self.unknown

    def readable(self) -> dict[str, Any]:
        """Return the entries to read: all but the options in the form to compare."""
        return {key: value for key, value in self.to_json().items() if key != "option_values"}

    def set_plan(self, plan: ExecutionPlan) -> None:
        """Record how clients are computed."""
        self.engine, self.compiled, self.chunk, self.engine_why = plan.engine, plan.compiled, plan.chunk, plan.reason
        self.blockwise = plan.blockwise or None

    def continue_from(self, before: RunInfo) -> None:
        """Take over the outcome of the earlier part of the run."""
        for name in ("narrowed", "recovered", "client_accuracy", "diverged", "light"):
            setattr(self, name, getattr(before, name))

    def __getitem__(self, key: str) -> Any:
        return self.to_json()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_json())

    def __len__(self) -> int:
        return len(self.to_json())


_NOT_KEYS = ("options", "unknown")
"""Fields whose entries are keys themselves."""


def _key(f: Any) -> str:
    """Return the key of a field in checkpoints."""
    return str(f.metadata.get("key", f.name))
