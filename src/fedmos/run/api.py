"""`fm.run`: one federated training run from arguments to result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, get_type_hints

from .options import call_with_options, document_options
from .result import Result
from .run import Run
from .spec import RunSpec

P = ParamSpec("P")


def _with_options_of(
    make: Callable[P, RunSpec],
) -> Callable[[Callable[[RunSpec], Result]], Callable[P, Result]]:
    """Give a function of a spec the spec's parameters, signature and documentation."""

    def decorate(function: Callable[[RunSpec], Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def with_options(*args: P.args, **kwargs: P.kwargs) -> Result:
            return function(call_with_options(function.__name__, make, args, kwargs))

        types = get_type_hints(make)
        parameters = [p.replace(annotation=types[p.name]) for p in inspect.signature(make).parameters.values()]
        signature = inspect.Signature(parameters, return_annotation=Result)
        with_options.__signature__ = signature  # type: ignore[attr-defined]
        with_options.__annotations__ = types | {"return": Result}
        with_options.__doc__ = document_options(function.__doc__ or "", make)
        return with_options

    return decorate


@_with_options_of(RunSpec)
def run(spec: RunSpec) -> Result:
    """Train a model over the clients of a federation, and return the trained model with the history of the run.

    {options}

    Returns:
        The model, the state of server and clients, and one record per round. Ctrl-C ends the run after the last
        complete round; the result is then marked `interrupted`.

    Raises:
        ValueError: if an option is invalid, or options do not fit together.
        DivergenceError: if an update is not finite and `on_bad_update` is "stop"; it carries the result so far.

    Example:
        >>> data = fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=0.5), clients=10)
        >>> model = fm.models.mlp(features=64)
        >>> result = fm.run(model, data, fm.FedMoS(lr=0.1), fm.ACS(m=5), rounds=20, local_steps=5, batch_size=8)
        >>> result.rounds_to("accuracy", 0.8) <= 20
        True
    """
    return Run(spec).play()
