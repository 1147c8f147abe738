"""The hash that a client and the server must have in common."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import fedmos as fm
from fedmos.config.own_classes import resolve
from fedmos.core.flat_model import FlatModel
from fedmos.flower.deployment import Deployment
from fedmos.run.options import options_of
from fedmos.run.spec import RunSpec


@dataclass(frozen=True)
class Factors(fm.Algorithm):
    lr: float
    factors: Tensor


@pytest.fixture
def hash_of(digits):
    def make(**changes) -> str:
        given = {
            "model": fm.models.logistic(features=64),
            "data": digits,
            "algorithm": fm.FedAvg(lr=0.1),
            "selection": fm.Uniform(m=4),
            "rounds": 3,
            "local_steps": 2,
        }
        deployment = Deployment.of(given | changes)
        model = FlatModel(deployment.spec.model, torch.device("cpu"), deployment.spec.dtype, deployment.spec.precision)
        return deployment.compatibility_hash(model)

    return make


def first_output(outputs):
    return outputs[0]


SHARED = {
    "algorithm": {"algorithm": fm.FedAvg(lr=0.2)},
    "local_steps": {"local_steps": 3},
    "local_epochs": {"local_steps": None, "local_epochs": 2},
    "batch_size": {"batch_size": 4},
    "loss": {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
    "outputs": {"outputs": first_output},
    "batchnorm": {"batchnorm": "frozen"},
    "class_weights": {"class_weights": [1.0] * 9 + [2.0]},
    "weight_decay": {"weight_decay": 0.1},
    "clip": {"clip": 1.0},
    "local": {"local": fm.local.Adam(beta2=0.9)},
    "uplink": {"uplink": fm.codecs.Float16()},
    "downlink": {"downlink": fm.codecs.Float16()},
    "privacy": {"privacy": fm.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-3)},
    "aggregation": {"aggregation": fm.aggregation.Secure()},
    "personal": {"personal": ["*bias"]},
    "seed": {"seed": 1},
    "dtype": {"dtype": torch.float64},
    "precision": {"precision": "bf16"},
}


def test_the_options_that_must_agree_are_marked():
    assert {name for name, option in options_of(RunSpec).items() if option.shared} == set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_an_option_that_must_agree_changes_the_hash(hash_of, name):
    assert hash_of(**SHARED[name]) != hash_of()


def test_other_options_do_not_change_the_hash(hash_of):
    other = {"rounds": 9, "selection": fm.Uniform(m=3), "eval_every": 2, "lr_decay": 0.9, "target": {"accuracy": 0.5}}
    assert hash_of(**other) == hash_of()


def test_the_hash_is_of_values_and_not_of_their_text(hash_of):
    one, other = torch.ones(1898), torch.ones(1898)
    assert hash_of(algorithm=Factors(0.1, one)) == hash_of(algorithm=Factors(0.1, other))
    other[949] = 2
    assert repr(one) == repr(other)
    assert hash_of(algorithm=Factors(0.1, one)) != hash_of(algorithm=Factors(0.1, other))


def test_the_hash_has_the_code_of_own_classes(hash_of, tmp_path):
    def algorithm(code: str) -> fm.Algorithm:
        (tmp_path / "mine.py").write_text(code)
        made = resolve("algorithm", f"{tmp_path / 'mine.py'}:Mine")(lr=0.1)
        assert isinstance(made, fm.Algorithm)
        return made

    code = "import fedmos as fm\n\nclass Mine(fm.FedAvg):\n    pass\n"
    assert hash_of(algorithm=algorithm(code)) == hash_of(algorithm=algorithm(code))
    assert hash_of(algorithm=algorithm(code)) != hash_of(algorithm=algorithm(code + "# other\n"))
