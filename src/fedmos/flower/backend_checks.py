"""What the clients of a deployment cannot be asked for."""

from __future__ import annotations

from ..core.personal_parameters import PERSONAL
from ..core.statistics_layout import AFFINE, STATISTICS
from ..engine.backend import StepObserver
from ..engine.declaration import Declaration


def refuse_observer(observer: StepObserver | None) -> None:
    """Refuse to observe local steps."""
    if observer is not None:
        raise ValueError("Cannot observe local steps because clients are remote; use fm.run")


def check_no_client_models(declaration: Declaration) -> None:
    """Refuse to ask clients for values at x that depend on the part of the model that they keep."""
    if {STATISTICS, AFFINE, PERSONAL} & set(declaration.client_state):
        raise ValueError(
            "Cannot ask the clients of a deployment for losses, gradients or metrics at x with batchnorm='local' or "
            "personal= because they depend on what each client keeps; use a selection without them and "
            "train_metrics=False"
        )
