"""One SuperLink and four SuperNodes that the tests of a process share."""

import pytest

from fedmos.flower.local.app_template import CONFIGURATION, write_app
from helpers.deploy_methods import CLIENTS, configuration


@pytest.fixture(scope="session")
def deployment(tmp_path_factory):
    from fedmos.flower.local.local_deployment import LocalDeployment

    folder = tmp_path_factory.mktemp("deployment")
    preloaded = write_app(folder / "preloaded", configuration("SCAFFOLD").kept()) / "preloaded" / CONFIGURATION
    clients = [str(i) for i in range(CLIENTS)]
    with LocalDeployment(folder / "processes", clients, preload=preloaded) as deployment:
        yield deployment


@pytest.fixture
def app(tmp_path):
    """Writes the app of a configuration."""
    return lambda settings: write_app(tmp_path / "app", settings.kept())
