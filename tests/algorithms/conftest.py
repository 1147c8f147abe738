"""Fixtures for tests of algorithms."""

import pytest


@pytest.fixture(params=["loop", "batched", "auto"])
def engine(request):
    return request.param
