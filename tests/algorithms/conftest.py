"""Fixtures for tests of algorithms."""

import pytest


@pytest.fixture(params=["loop", "batched", pytest.param("auto", marks=pytest.mark.extended)])
def engine(request):
    return request.param
