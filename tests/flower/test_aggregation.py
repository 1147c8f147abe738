"""A deployment with an aggregation rule: the bits of the simulation, and clients that cheat."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos import aggregation

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Array, ArrayRecord, Message

from fedmos.flower import wire
from helpers.conformance import EACH
from helpers.flower_runs import BAD, EVERYONE, SELECTORS, arguments, assert_same
from helpers.robust import RULES


def compare(deployed, algorithm, rule, **changes):
    given = arguments(algorithm=algorithm, rounds=3, selection=EVERYONE, aggregation=rule) | changes
    assert_same(deployed(given).run(), fm.run(**given))


@pytest.mark.parametrize("rule", [aggregation.Median(), aggregation.Krum(1, keep=3)], ids=str)
@pytest.mark.parametrize("algorithm", [fm.Scaffold(lr=0.05), fm.Mime(lr=0.05, beta=0.5), fm.FedNova(lr=0.05)], ids=str)
def test_the_same_as_the_simulation(deployed, algorithm, rule):
    compare(deployed, algorithm, rule)


@pytest.mark.parametrize(
    "rule", [one if not one.scale_free else pytest.param(one, marks=pytest.mark.extended) for one in RULES], ids=str
)
def test_every_rule(deployed, rule):
    compare(deployed, fm.FedAvg(lr=0.1), rule)


def test_thinning_and_codecs(deployed):
    compare(deployed, fm.FedAvg(lr=0.1), aggregation.Median(), selection=SELECTORS["OCS"], uplink=fm.codecs.Quantize(4))


@pytest.mark.extended
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("case", EACH, ids=str)
def test_every_algorithm(deployed, case, rule):
    if rule.scale_free:
        compare(deployed, case.make(lr=0.05), rule)


def test_a_client_that_does_not_answer_is_left_out(deployed):
    made = deployed(arguments(selection=EVERYONE, rounds=2, aggregation=aggregation.Krum(1)))
    made.network.nodes[102].online = False
    result = made.run()
    assert not any(record.abandoned for record in result.history)  # five of six clients are enough
    assert bool(result.params.isfinite().all())


def test_attacks_are_refused(deployed):
    with pytest.raises(ValueError, match=r"Cannot use attack=SignFlip\(.*\) in a deployment because hostile clients"):
        deployed(arguments(attack=fm.attacks.SignFlip(share=0.5)))


@pytest.mark.parametrize(("rule", "least", "most"), [(None, 1e5, 1e9), (aggregation.Median(), 0, 1)], ids=str)
def test_one_hostile_client_of_six(deployed, rule, least, most):
    """A finite update of any size moves the mean, and not the median."""
    given = arguments(selection=EVERYONE, rounds=1)
    honest = fm.run(**given).params

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id == 100 + BAD and request.metadata.message_type == wire.TRAIN:
            size = len(honest)
            huge = Array("float32", (size,), "fedmos.raw", np.full(size, 1e6, np.float32).tobytes())
            reply.content["vectors"] = ArrayRecord({"delta": huge})
        return reply

    made = deployed(given | {"aggregation": rule}, norm_bound="off")
    made.network.tamper = tamper
    assert least < float(torch.linalg.vector_norm(made.run().params - honest)) < most
