"""One SuperLink and four SuperNodes that the tests of a process share."""

import os

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")

from methods import CLIENTS

from fedmos.deploy.app import write_app
from fedmos.deploy.local import LocalDeployment


@pytest.fixture(scope="session")
def deployment(tmp_path_factory):
    os.environ["OMP_NUM_THREADS"] = "1"
    with LocalDeployment(tmp_path_factory.mktemp("deployment"), [str(i) for i in range(CLIENTS)]) as deployment:
        yield deployment


@pytest.fixture
def app(tmp_path):
    """Writes the app of a configuration."""
    return lambda settings: write_app(tmp_path / "app", settings.kept())
