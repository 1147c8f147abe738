"""Models: sizes, seeds, and the same training on both engines."""

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.config import registry as registry
from helpers.models import SMALL, flat, make, samples

SIZES = {
    "char_lstm": 133_520,
    "cnn_cifar": 122_570,
    "cnn_digits": 1_898,
    "cnn_pfllib": 582_026,
    "cnn_mnist": 21_840,
    "lenet": 797_962,
    "logistic": 7_850,
    "mlp": 52_500,
    "mlp_cifar": 379_774,
    "mobilenet_v2": 2_236_682,
    "resnet18": 11_173_962,
    "resnet20": 269_722,
    "simple_cnn": 62_006,
    "vit_b16": 85_806_346,
    "word_lstm": 4_053_428,
}


def test_every_model_is_in_the_catalogue():
    assert sorted(registry.models()) == sorted(SIZES) == sorted({case.split()[0] for case in SMALL})


@pytest.mark.parametrize("name", SIZES)
def test_models_have_the_papers_sizes(name):
    if name in ("mobilenet_v2", "vit_b16"):
        pytest.importorskip("transformers")
    assert sum(p.numel() for p in getattr(fm.models, name)().parameters()) == SIZES[name]


def test_the_stem_for_imagenet():
    model = fm.models.resnet18(stem="imagenet")
    assert sum(p.numel() for p in model.parameters()) == 11_181_642
    assert model[:-3](torch.zeros(1, 3, 64, 64)).shape == (1, 512, 2, 2)
    assert fm.models.resnet18()[:-3](torch.zeros(1, 3, 16, 16)).shape == (1, 512, 2, 2)
    with pytest.raises(ValueError, match="resnet18: 'stem' must be one of 'cifar', 'imagenet', got 'mnist'"):
        fm.models.resnet18(stem="mnist")


@pytest.mark.parametrize("case", SMALL)
def test_models_give_a_score_per_class_and_follow_their_seed_alone(case):
    before = torch.get_rng_state()
    a, b, other = make(case), make(case), make(case, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert a.training
    assert torch.equal(flat(a), flat(b))
    assert not torch.equal(flat(a), flat(other))
    x, y = samples(case, 3)
    outputs = a.eval()(torch.tensor(x) if x.dtype.kind == "i" else torch.tensor(x).float())
    classes = SMALL[case][2]
    assert outputs.shape == (3, classes, *y.shape[1:])


def test_seeds_mean_pytorchs_own_initial_weights():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert torch.equal(flat(fm.models.logistic(features=64, seed=5)), flat(expected))
    assert torch.equal(flat(fm.models.logistic(features=64, seed=np.int64(5))), flat(expected))


@pytest.mark.parametrize("case", SMALL)
def test_models_train_alike_on_both_engines(case):
    clients = [samples(case, n, seed=n) for n in (3, 2)]
    results = [
        fm.run(
            make(case),
            fm.FederatedData.from_arrays(clients, test=samples(case, 2)),
            fm.FedAvg(lr=0.05),
            fm.Full(),
            rounds=1,
            local_steps=1,
            batch_size=2,
            dtype=torch.float64,
            device="cpu",
            engine=engine,
        )
        for engine in ("loop", "batched")
    ]
    loop, batched = (result.params for result in results)
    assert not torch.allclose(loop, flat(make(case)).double(), rtol=0, atol=1e-6)
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)
    assert 0 <= results[0].history[-1].accuracy <= 1
