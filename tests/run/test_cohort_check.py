"""The comparison of a cohort with single clients before a run with the user's own classes."""

from dataclasses import dataclass

import pytest
import torch

import fedmos as fm

HOW = {"selection": fm.Uniform(m=5), "rounds": 1, "local_steps": 3, "batch_size": 8}


class OneNorm(fm.FedAvg):
    """The norm is that of all clients of a cohort."""

    def direction(self, y, s, c, grad, k):
        g = grad(y)
        return g / g.norm(), s


class OwnNorms(fm.FedAvg):
    def direction(self, y, s, c, grad, k):
        g = grad(y)
        return g / g.norm(dim=-1, keepdim=True), s


class OneMean(fm.FedAvg):
    def step(self, y, s, c, grad, k):
        g = grad(y)
        return y - c.lr * (g - g.mean()), s


class OneMaximum(fm.FedAvg):
    def finish(self, y, s, c, grad):
        delta = y - c.x
        return {"delta": delta / delta.abs().max()}, {}


class OneNormInTheExtraPhase(fm.Mime):
    def prepare(self, c, grad):
        return {name: v / v.norm() for name, v in super().prepare(c, grad).items()}


@dataclass(frozen=True)
class OneNormOfDirections(fm.local.LocalOptimizer):
    def update(self, d, y, s, lr, layers):
        return d / d.norm(), {}


@pytest.fixture(scope="module")
def data():
    return fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=10, seed=0)


@pytest.mark.parametrize("engine", ["batched", "auto"])
@pytest.mark.parametrize("kind", [OneNorm, OneMean, OneMaximum, OneNormInTheExtraPhase])
def test_a_number_of_the_whole_cohort_is_refused(data, kind, engine):
    with pytest.raises(ValueError, match=f"^Cannot train a cohort with {kind.__name__} because the upload '.*dim=-1"):
        fm.run(fm.models.mlp(features=64), data, kind(lr=0.1), engine=engine, **HOW)


def test_it_is_computed_in_the_loop(data):
    assert len(fm.run(fm.models.mlp(features=64), data, OneNorm(lr=0.1), engine="loop", **HOW).history) == 1


def test_local_optimisers_are_compared(data):
    with pytest.raises(ValueError, match="with OneNormOfDirections because the upload 'delta'"):
        fm.run(fm.models.logistic(features=64), data, fm.FedAvg(lr=0.1), local=OneNormOfDirections(), **HOW)


def test_merged_runs_are_compared(data):
    with pytest.raises(ValueError, match="Cannot train a cohort with OneNorm"):
        fm.run_many([{"seed": 0}, {"seed": 1}], model=fm.models.logistic(features=64), data=data, engine="batched",
                    algorithm=OneNorm(lr=0.1), **HOW)  # fmt: skip


def test_what_is_right_is_accepted_with_codecs_personal_parameters_and_a_local_optimiser(data):
    coded = fm.codecs.ErrorFeedback([fm.codecs.Rotate(), fm.codecs.Quantize(4)])
    options = {"uplink": coded, "local": fm.local.Adam(keep=True), "personal": ["5.*"], "clip": 1.0}
    plain, other = (
        fm.run(fm.models.mlp(features=64), data, OwnNorms(lr=0.1), engine=engine, **HOW, **options)
        for engine in ("batched", "loop")
    )
    assert torch.allclose(plain.params, other.params, atol=1e-4)
