"""The methods that are deployed on digits, and what the simulator makes of them."""

from pathlib import Path
from typing import Any

import torch

import fedmos as fm
from fedmos.config import schema as config

CLIENTS = 4
METHODS: dict[str, dict[str, Any]] = {
    "FedMoS + ACS": {"algorithm": {"name": "FedMoS", "lr": 0.05}, "selection": {"name": "ACS", "m": 2}},
    "SCAFFOLD": {"algorithm": {"name": "Scaffold", "lr": 0.05}, "selection": {"name": "Uniform", "m": 2}},
    "MimeMom": {"algorithm": {"name": "Mime", "lr": 0.05, "beta": 0.9}, "selection": {"name": "Uniform", "m": 2}},
    "SCAFFOLD, coded": {
        "algorithm": {"name": "Scaffold", "lr": 0.05},
        "selection": {"name": "Uniform", "m": 2},
        "uplink": {"name": "ErrorFeedback", "codec": [{"name": "Rotate"}, {"name": "Quantize", "bits": 4}]},
        "downlink": {"name": "Quantize", "bits": 8},
    },
    "SCAFFOLD, secure": {
        "algorithm": {"name": "Scaffold", "lr": 0.05},
        "selection": {"name": "Uniform", "m": 3},
        "aggregation": {"name": "Secure", "bits": 24, "bound": 4.0},
    },
    "FedHBM": {"algorithm": {"name": "FedHBM", "lr": 0.05}, "selection": {"name": "Uniform", "m": 2}},
    "rpow-d": {
        "algorithm": {"name": "FedAvg", "lr": 0.05},
        "selection": {"name": "PowerOfChoice", "m": 2, "d": 3, "loss": "reported"},
    },
}


def configuration(method: str, rounds: int = 10, **changes: Any) -> config.RunConfig:
    """A run of a method on digits, five classes per client."""
    common = {
        "rounds": rounds,
        "local_steps": 3,
        "batch_size": 8,
        "engine": "loop",
        "device": "cpu",
        "data": {
            "name": "digits",
            "clients": CLIENTS,
            "partition": {"name": "ByClass", "classes": 5, "size": [20, 60]},
        },
        "model": {"name": "mlp", "features": 64},
    }
    return config.parse(config.RunConfig, common | METHODS[method] | changes)


def simulated(settings: config.RunConfig) -> fm.Result:
    return settings.run(settings.algorithm, settings.selection, settings.seed)


def assert_same_bits(run: Path, settings: config.RunConfig) -> None:
    """A deployed run without a late client or an abandoned round has the cohorts and the model of the simulator's."""
    expected, found = simulated(settings), fm.Result.load(run)
    assert [record.cohort for record in found.history] == [record.cohort for record in expected.history]
    assert not any(record.late or record.abandoned for record in found.history)
    assert torch.equal(found.params, expected.params)
