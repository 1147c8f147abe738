"""Parameters that stay with each client: which ones, and their place behind the shared ones in the flat vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from .formatting import format_value
from .module_kind import UnsuitableModel
from .validation import count, require, suggest

PERSONAL = "personal"
"""The name of the client state that holds these parameters."""

_SHOWN = 20
"""The number of parameters that an error names."""


@dataclass(frozen=True)
class Personal:
    """The parameters of a model that every client keeps for itself: the option `personal`.

    Args:
        patterns: Names of parameters, in which * stands for any text, as in `["head.*"]`.
        steps: Of the local steps of a round, the first so many train these parameters only and the others train the
            shared ones only, as in FedRep. None trains all parameters in every step, as in FedPer.

    Raises:
        ValueError: If a pattern is no text, there is none, or `steps` is no integer ≥ 1.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        >>> fedrep = fm.Personal(["3.*"], steps=2)
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=4, batch_size=8, personal=fedrep
        ... )
        >>> own = result.personal_model(0)
    """

    patterns: tuple[str, ...]
    steps: int | None = None

    def __post_init__(self) -> None:
        given: Any = (self.patterns,) if isinstance(self.patterns, str) else self.patterns
        if not (isinstance(given, Sequence) and len(given) > 0 and all(isinstance(v, str) and v for v in given)):
            raise ValueError(
                "Personal: 'patterns' must be a list of names of parameters, e.g. ['head.*'], got "
                f"{format_value(given)}"
            )
        object.__setattr__(self, "patterns", tuple(given))
        if self.steps is not None:
            require("Personal", "steps", self.steps, count)


def as_personal(v: Any) -> Personal:
    """Return the value of the option `personal` as an object."""
    if isinstance(v, Personal):
        return v
    return Personal(**v) if isinstance(v, dict) else Personal(tuple(v) if isinstance(v, list | tuple) else v)


def is_personal(v: Any) -> bool:
    """Whether a value can be one of the option `personal`; a table has the fields of `Personal`."""
    if isinstance(v, str):
        return bool(v)
    if isinstance(v, dict):
        return "patterns" in v and set(v) <= {"patterns", "steps"}
    return isinstance(v, Personal) or (
        isinstance(v, list | tuple) and len(v) > 0 and all(isinstance(one, str) and one for one in v)
    )


def record_personal(v: Personal | None) -> dict[str, Any] | None:
    """Return the option as JSON, from which `as_personal` makes it again."""
    return None if v is None else {"patterns": list(v.patterns)} | ({} if v.steps is None else {"steps": v.steps})


def personal_names(model: nn.Module, personal: Personal | None) -> list[str]:
    """Return the names of the trainable parameters that clients keep, in the order of the model.

    Raises:
        UnsuitableModel: If a pattern matches no trainable parameter, or all parameters match.
    """
    if personal is None:
        return []
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    names = {id(p): {name} for name, p in trainable}  # tied parameters have several
    for alias, p in model.named_parameters(remove_duplicate=False):
        names.get(id(p), set()).add(alias)
    matches = {
        pattern: [name for name, p in trainable if any(fnmatchcase(alias, pattern) for alias in names[id(p)])]
        for pattern in personal.patterns
    }
    listed = ", ".join(name for name, _ in trainable[:_SHOWN]) + (", …" if len(trainable) > _SHOWN else "")
    for pattern, found in matches.items():
        if not found:
            raise UnsuitableModel(
                f"run: 'personal' must name trainable parameters of the model ({listed}), got {pattern!r}, which "
                f"matches none{_hint(pattern, [name for name, _ in trainable])}"
            )
    kept = {name for found in matches.values() for name in found}
    if len(kept) == len(trainable):
        raise UnsuitableModel(
            f"Cannot keep all parameters ({listed}) with the clients because nothing would be shared; use fewer "
            "patterns in personal=, or the algorithm fm.LocalOnly for local training alone"
        )
    return [name for name, _ in trainable if name in kept]


def _hint(pattern: str, names: Sequence[str]) -> str:
    """Suggest the pattern of all parameters of a module, or a name."""
    modules = {name[:i] for name in names for i, c in enumerate(name) if c == "."}
    if any(fnmatchcase(module, pattern) for module in modules):
        return f"; {pattern + '.*'!r} matches the parameters of the module"
    return suggest(pattern, [*names, *(f"{module}.*" for module in sorted(modules))])


def recorded_names(model: nn.Module, info: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters that clients keep in a run with this record."""
    recorded = info.get(PERSONAL)
    return [] if recorded is None else personal_names(model, as_personal(recorded))
