"""The numbers that clients report with their uploads, by name."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..algorithm import Vectors
from ..codecs.compose import ON_WIRE
from ..core.statistics_layout import AFFINE, STATISTICS
from ..core.validation import suggest
from ..selection.selector import REPORTS, Selector
from .declaration import Declaration
from .gradients import LocalGradient
from .task import Task

AT_START = ("start_loss", "start_squared_loss")
"""The reports for which a client evaluates its data; local training gives all others."""


def uploaded_numbers(declaration: Declaration) -> list[str]:
    """Return the names of the single numbers that the algorithm uploads."""
    return [name for name, shape in declaration.up("train").items() if shape == ()]


def sends_update(declaration: Declaration) -> bool:
    """Whether clients upload a change of the model, of which there is a norm; BatchNorm state is none."""
    return any(name not in (STATISTICS, AFFINE) for name in declaration.up("train"))


def check_reports(selector: Selector, declaration: Declaration, task: Task) -> None:
    """Check that clients can give the reports that the selector declares."""
    owner, algorithm = type(selector).__name__, type(declaration.algorithm).__name__
    if isinstance(selector.reports, str):
        raise ValueError(f"{owner}: 'reports' must be a tuple of names, got {selector.reports!r}")
    uploaded = uploaded_numbers(declaration)
    known, numbers = [*REPORTS, *uploaded], ""
    if uploaded:
        numbers = f", or of the numbers that {algorithm} uploads ({', '.join(uploaded)})"
    for name in selector.reports:
        if name not in known:
            hint = suggest(str(name), known)
            raise ValueError(f"{owner}: 'reports' must be of {', '.join(REPORTS)}{numbers}, got {name!r}{hint}")
        if name in REPORTS and name in uploaded:
            raise ValueError(f"Cannot report {name!r} because {algorithm} uploads it, too; use another name in 'up'")
    if "update_norm" in selector.reports and not sends_update(declaration):
        raise ValueError(
            f"Cannot report 'update_norm' because clients send no update with {algorithm}; use another selection than "
            f"{owner}, such as fm.Uniform(m=1)"
        )
    if "gradient_noise" in selector.reports and task.local_steps == 1:
        raise ValueError("Cannot report 'gradient_noise' because clients take one local step; use local_steps ≥ 2")


def in_training(names: Sequence[str]) -> tuple[str, ...]:
    """Return the reports that local training gives, each once."""
    return tuple(dict.fromkeys(name for name in names if name not in AT_START))


def extra_reports(names: Sequence[str], declaration: Declaration) -> list[str]:
    """Return the reports that are sent in addition to the uploads, each once."""
    uploaded = uploaded_numbers(declaration)
    return [name for name in dict.fromkeys(names) if name not in uploaded]


def report_row(name: str, uploads: Vectors, grad: LocalGradient) -> Tensor:
    """Return a report of local training, (M,).

    Args:
        name: The name of the report.
        uploads: What the clients upload, a row each.
        grad: The gradient object of their local training.
    """
    if name == "loss":
        return grad.reported()
    if name == "gradient_noise":
        return grad.noise()
    return update_norm(uploads) if name == "update_norm" else uploads[name]


def update_norm(uploads: Vectors) -> Tensor:
    """Return the norm of each client's upload "delta" or, without one, of all its uploads as one vector, (M,).

    BatchNorm state, which is no change of the model, does not count.
    """
    others = [v for n, v in uploads.items() if not n.startswith(ON_WIRE) and n not in (STATISTICS, AFFINE)]
    vectors = [uploads["delta"]] if "delta" in uploads else others
    norms = torch.stack([torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1) for v in vectors])
    norm: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(norms, dim=0)
    return norm
