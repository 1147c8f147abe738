"""Objects of plain classes with other attributes are other objects."""

from dataclasses import dataclass

import pytest
import torch

import fedmos as fm
from helpers.plain_classes import Scaled, ScaledCodec, ScaledMean, ScaledUploads
from helpers.problems import quadratic

PROBLEM = quadratic()


@pytest.mark.parametrize(
    ("option", "kind"),
    [("local", Scaled), ("uplink", ScaledCodec), ("aggregation", ScaledMean), ("attack", ScaledUploads)],
)
def test_attributes_of_plain_classes_count(option, kind):
    def trained(factor):
        return fm.run(
            PROBLEM.model(), PROBLEM.data(), fm.FedAvg(lr=0.1), fm.Full(), rounds=1, local_steps=1,
            loss=PROBLEM.loss, device="cpu", **{option: kind(factor)},
        ).params  # fmt: skip

    small, large = trained(0.25), trained(0.75)
    assert not torch.equal(small, large)
    assert torch.equal(trained(0.25), small)
    assert kind(1.0) != kind(2.0)


def test_dataclasses_are_equal_by_their_fields():
    @dataclass(frozen=True)
    class Power(fm.aggregation.Mean):
        p: float = 1.0

    assert Power(2.0) == Power(2.0) != Power(3.0)
    assert fm.codecs.ErrorFeedback(fm.codecs.TopK(0.1)) == fm.codecs.ErrorFeedback(fm.codecs.TopK(0.1))
    assert fm.local.Adam() == fm.local.Adam() != fm.local.Adam(beta2=0.9)


def test_records_name_the_attributes_of_plain_classes():
    class Slow(fm.Algorithm):
        def __init__(self, lr, factor):
            self.lr, self.factor, self._cache = lr, factor, None

    class Some(fm.Selector):
        def __init__(self, m):
            self.m = m

    assert repr(Scaled(0.5)) == "Scaled(factor=0.5)"
    assert repr(ScaledUploads(2)) == "ScaledUploads(share=0.5, clients=None, scale=1.0, factor=2)"
    assert repr(Slow(0.1, 2)).endswith("Slow(lr=0.1, factor=2)")
    assert repr(Some(3)).endswith("Some(m=3)")
    assert repr(fm.local.SGD(0.9)).startswith("SGD(keep=False, average=False, momentum=0.9")
