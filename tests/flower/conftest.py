"""A deployment on a network within the test process, in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers.clock import Clock

if TYPE_CHECKING:
    from helpers.flower_runs import Deployed


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The clock of a deployment's server."""
    import fedmos.flower.server  # noqa: F401  and with it all that waits

    clock = Clock()
    clock.install(monkeypatch, "fedmos.flower")
    return clock


@pytest.fixture
def deployed(tmp_path, clock):
    from helpers.flower_runs import Deployed, arguments

    def make(given: dict[str, Any] | None = None, **deploy: Any) -> Deployed:
        return Deployed(tmp_path, given or arguments(), **deploy)

    return make
