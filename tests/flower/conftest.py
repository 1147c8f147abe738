"""A deployment on a network within the test process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from helpers.flower_runs import Deployed


@pytest.fixture
def deployed(tmp_path):
    from helpers.flower_runs import Deployed, arguments

    def make(given: dict[str, Any] | None = None, **deploy: Any) -> Deployed:
        return Deployed(tmp_path, given or arguments(), **deploy)

    return make
