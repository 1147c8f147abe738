"""The samples of one client: those that it loads itself, or its part of the configuration's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..data.federated import FederatedData
from .deployment import Deployment

LoadClientData = Callable[[str], Any]
"""Takes a client's name; returns its samples, (x, y), or a `FederatedData` of one client."""


def client_samples(
    deployment: Deployment, load: LoadClientData | None, load_tests: LoadClientData | None, number: int, name: str
) -> FederatedData:
    """Return the samples of one client, with its test samples if it has any.

    Args:
        deployment: The options of the run.
        load: Loads the samples by the client's name; None for those of the configuration's data.
        load_tests: Loads the test samples by the client's name.
        number: The client's number.
        name: The client's name.

    Raises:
        ValueError: If there are no samples, or those of several clients.
    """
    if load is None:
        if deployment.data is None:
            raise ValueError("client_app: 'data' must be given where the configuration holds none")
        if load_tests is not None:
            raise ValueError(
                "Cannot use 'tests' without 'data' because the configuration's data has the test samples of its own; "
                "use both, or hold samples out there"
            )
        if number >= len(deployment.data):
            raise ValueError(f"node: the configuration's data has no part for '{name}'; use 'data' of client_app")
        return client_part(deployment.data, number)
    loaded = load(name)
    if load_tests is not None:
        if isinstance(loaded, FederatedData):
            raise ValueError(
                "Cannot use 'tests' with a FederatedData because it has test samples of its own; use "
                "from_arrays(..., tests=[(x, y)]), or return a pair (x, y)"
            )
        return client_part(FederatedData.from_arrays([loaded], tests=[load_tests(name)]), 0)
    data = loaded if isinstance(loaded, FederatedData) else FederatedData.from_arrays([loaded])
    if len(data) != 1:
        raise ValueError(f"client_app: 'data' must give the samples of one client, got {len(data)}")
    return client_part(data, 0)


def client_part(data: FederatedData, i: int) -> FederatedData:
    """Return the federated data of client i alone, with its own test samples."""
    x, y = data.stored(i)
    tests = None if data.tests is None else data.tests.subset(torch.tensor([i]))
    if tests is not None and tests.index is not None:
        tests = replace(tests, x=tests.x[tests.index], y=tests.y[tests.index], index=None)
    return replace(
        data,
        x=x,
        y=y,
        index=None,
        offsets=torch.tensor([0, len(x)]),
        importance=torch.ones(1, dtype=torch.float64),
        test=None,
        tests=tests,
        unseen=None,
        names=None,
    )
