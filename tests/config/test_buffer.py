"""Asynchronous rounds in configurations and deployments."""

import pytest

import fedmos as fm
from fedmos import config
from fedmos.config.errors import ConfigError
from fedmos.flower.deployment import Deployment

RUN = """
rounds = 2
local_steps = 2
batch_size = 4
algorithm = { name = "FedAvg", lr = 0.1 }
selection = { name = "Uniform", m = 1 }
system = { dropout = 0.1 }
buffer = { size = 3, concurrency = 5 }

[data]
name = "digits"
clients = 20
partition = { name = "IID" }

[model]
name = "logistic"
features = 64
"""


@pytest.fixture
def load(tmp_path):
    def load(*changes: str) -> config.RunConfig:
        (tmp_path / "run.toml").write_text(RUN)
        return config.load(config.RunConfig, tmp_path / "run.toml", list(changes))

    return load


def test_a_configuration_runs_asynchronously(load):
    settings = load("buffer.staleness=0.0")
    arguments = settings.arguments(settings.algorithm, settings.selection, settings.seed)
    assert arguments["buffer"] == fm.Buffer(3, 5, staleness=0)
    assert arguments["system"].dropout == 0.1
    result = settings.run(settings.algorithm, settings.selection, settings.seed)
    assert [len(record.ages) for record in result.history] == [3, 3]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("buffer.size=0", "buffer.size: must be an integer ≥ 1, got 0"),
        ("buffer.sise=2", "buffer.sise: unknown field"),
        ("buffer.size=21", r"buffer.size: must be ≤ the number of clients \(20\), got 21"),
        ("algorithm.name=Mime", "Cannot use buffer= with Mime"),
        ("selection={name='Full'}", "Cannot use buffer= with Full"),
    ],
)
def test_errors_name_the_field(load, change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load(change).check()


def test_a_deployment_has_it(load):
    assert Deployment.of(load("buffer.staleness=0.0")).spec.buffer == fm.Buffer(3, 5, staleness=0)
