"""The row of local training alone, which a comparison of Python objects adds by default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..algorithms import LocalOnly
from ..config.comparison import ALONE, INDEPENDENT, NOT_SENT
from ..data.federated import FederatedData
from ..engine.cohort_size import cohort_size
from ..evaluation.evaluate_clients import EvaluateClients
from ..selection.selector import Selector
from ..selection.uniform import Uniform
from .objects import ObjectComparison, ObjectMethod


def with_local_training(made: ObjectComparison) -> ObjectComparison:
    """Return the comparison with a row of local training alone, if clients have test samples of their own.

    Clients are then evaluated at the end of every run, unless the comparison says when.
    """
    data = made.of_seed("data", made.data, next(iter(made.seeds), 0))
    if not isinstance(data, FederatedData) or data.tests is None:
        return made
    options = {"evaluate_clients": EvaluateClients(every=made.rounds)} | dict(made.options)
    if options["evaluate_clients"] is None:
        options["evaluate_clients"] = EvaluateClients(every=made.rounds)
    methods = list(made.methods)
    if not any(isinstance(method.algorithm, LocalOnly) for method in methods):
        if any(method.label == ALONE for method in methods):
            raise ValueError(
                f"compare: 'methods' must not have {ALONE!r}, which the row of local training is called; use another "
                "label, or local_training=False"
            )
        methods.append(_row(methods[0], data))
    return replace(made, methods=methods, options=options)


def _row(first: ObjectMethod, data: FederatedData) -> ObjectMethod:
    own: dict[str, Any] = {name: value for name, value in first.arguments.items() if name not in NOT_SENT}
    own |= dict.fromkeys(NOT_SENT) | {
        "algorithm": LocalOnly(lr=first.lr),
        "selection": _independent(first.arguments["selection"], len(data)),
    }
    grid = None if first.grid is None else {"lr": first.grid["lr"]}
    return ObjectMethod(label=ALONE, arguments=own, grid=grid)


def _independent(selection: Any, clients: int) -> Any:
    """Return a selection of as many clients that needs nothing from them."""
    if type(selection).__name__ in INDEPENDENT or not isinstance(selection, Selector):
        return selection
    return Uniform(m=cohort_size(selection, None, clients))
