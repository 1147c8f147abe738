"""The contract of every algorithm: inputs unmutated, bytes as declared, engines agree."""

from __future__ import annotations

import hashlib

import pytest
import torch

import fedmos as fm
from helpers.conformance import COHORTS, DEVICE, EACH, LOGISTIC, WEIGHTS, Log, spied, train

each_class = pytest.mark.parametrize("case", EACH, ids=str)
BRIEFLY = {"FedAvg", "FedMoS", "FedHBM", "Scaffold", "Mime", "FedCM", "FedSMOO", "FedExP", "Ditto"}
"""Algorithms of all kinds: those that the default suite runs where the extended suite runs all."""
some_classes = pytest.mark.parametrize(
    "case", [c if c.name in BRIEFLY else pytest.param(c, marks=pytest.mark.extended) for c in EACH], ids=str
)
EPOCHS = {"local_epochs": 1, "batch_size": 4}


def fingerprint(*tensors: torch.Tensor | None) -> str:
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors if t is not None)).hexdigest()


@each_class
def test_the_callers_model_and_data_stay_untouched(case, engine):
    problem = LOGISTIC
    model, data = problem.model().eval(), problem.data()

    def state():
        parts = (*model.parameters(), data.x, data.y, data.importance, data.offsets)
        return fingerprint(*parts), model.training, [p.grad for p in model.parameters()], torch.get_rng_state().tolist()

    before = state()
    run = {"rounds": 3, "device": "cpu", "dtype": torch.float64, "engine": engine} | EPOCHS
    result = fm.run(model, data, case.make(), fm.Uniform(m=3), **run)
    assert state() == before
    trained = result.personal_model(int(result.history[-1].cohort[0])) if case.name == "LocalOnly" else result.model
    assert fingerprint(*trained.parameters()) != fingerprint(*model.parameters())


@some_classes
def test_a_clients_data_reach_the_others_through_the_server_only(case, engine):
    """Client 4 joins in round 2. Other data there change what it sends; what the others send, given the same message
    of the server, stays the same to the last bit."""
    problem, script = LOGISTIC, fm.FixedCohorts([(0, 1, 2), (1, 3), (0, 1, 3, 4, 5)])
    before, after = Log(problem), Log(problem)
    train(problem, spied(case.make(), before), engine, script, rounds=3, **EPOCHS)
    train(problem.changed(4), spied(case.make(), after, before.message), engine, script, rounds=3, **EPOCHS)
    for old, new in ((before.uploads, after.uploads), (before.prepared, after.prepared)):
        assert old.keys() == new.keys()
        for t, i in old:
            alike = {name: torch.equal(v, new[t, i][name]) for name, v in old[t, i].items()}
            assert alike == {name: i != 4 or name == "tau" for name in alike}, (t, i)  # τ_i is a number of steps


@some_classes
def test_the_order_of_a_cohort_means_nothing(case, engine):
    def mirrored(lists):
        return [tuple(reversed(row)) for row in lists]

    problem = LOGISTIC
    a = train(problem, case.make(), engine, rounds=7, **EPOCHS)
    b = train(problem, case.make(), engine, fm.FixedCohorts(mirrored(COHORTS), mirrored(WEIGHTS)), rounds=7, **EPOCHS)
    assert torch.equal(a.params, b.params)
    assert all(torch.equal(v, b.server_state[name]) for name, v in a.server_state.items())
    assert all(torch.equal(v, b.client_state(i)[name]) for i in range(6) for name, v in a.client_state(i).items())


@some_classes
def test_bytes_are_those_of_the_vectors_handed_over(case, engine):
    """The history counts what was sent, which is what the algorithm table says."""
    problem, algorithm = LOGISTIC, case.make()
    log = Log(problem)
    result = train(problem, spied(algorithm, log), engine, rounds=4, **EPOCHS)

    def size(vectors):
        return sum(v.nbytes for v in vectors.values())

    for record in result.history:
        t, M = record.round - 1, len(record.cohort)
        assert record.bytes_down == M * (("x" in algorithm.down) * log.x[t].nbytes + size(log.message[t]))
        assert record.bytes_up == sum(
            size(sent.get((t, i), {})) for sent in (log.uploads, log.prepared) for i in record.cohort
        )
        down, up = case.wire
        up += case.name == "Stem" and t == 0
        assert (record.bytes_down, record.bytes_up) == (M * down * 15 * 8, M * (up * 15 + case.numbers) * 8)


@some_classes
def test_a_resumed_run_is_the_same(case, tmp_path):
    """Two rounds and two more, from the files of the first two, are four rounds."""
    run = {"problem": LOGISTIC, "algorithm": case.make(), "engine": "batched"} | EPOCHS
    whole = train(rounds=4, **run)
    train(rounds=2, out=tmp_path / "run", **run)
    resumed = train(rounds=4, out=tmp_path / "run", resume=True, **run)
    assert len(resumed.history) == 4
    assert torch.equal(whole.params, resumed.params)
    assert all(torch.equal(v, resumed.server_state[name]) for name, v in whole.server_state.items())
    assert all(
        torch.equal(v, resumed.client_state(i)[name]) for i in range(7) for name, v in whole.client_state(i).items()
    )


@each_class
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), pytest.param(torch.float32, 1e-5, marks=pytest.mark.extended)],
    ids=str,
)
def test_engines_agree(case, dtype, tolerance, digits):
    """Loop and batched part by rounding only, over twelve rounds of a convolutional network."""
    loop, batched = (
        fm.run(
            fm.models.cnn_digits(),
            digits,
            case.make(lr=0.02),
            fm.Uniform(m=2, weights="cohort"),
            rounds=12,
            local_steps=2,
            batch_size=5,
            eval_every=20,
            device=device,
            dtype=dtype,
            engine=engine,
        ).params
        for engine, device in (("loop", "cpu"), ("batched", DEVICE))
    )
    assert (loop - batched).norm() <= tolerance * loop.norm()
