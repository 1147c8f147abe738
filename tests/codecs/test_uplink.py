"""Coded uploads in runs: trajectories, residuals, identities of methods, bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.codecs import ErrorFeedback, Float16, Quantize, RandomK, Rotate, Sign, TopK
from fedmos.codecs.links import link_key
from helpers.coded_runs import HALF, LOSSLESS, SOME, Scaled
from helpers.compiling import scalar_code
from helpers.conformance import CASES, COHORTS, LOGISTIC, LR, QUADRATIC, close, train

EPOCHS = {"local_epochs": 2, "batch_size": 4}
ENGINES = ("loop", "batched")
D, NUMBER = 15, 8
"""Parameters of the model, and bytes of a number."""
LOSSY = {
    "Quantize": Quantize(4),
    "feedback": ErrorFeedback(TopK(0.2)),
    "chain": [Rotate(), Quantize(4)],
    "RandomK": RandomK(0.3),
}


@dataclass(frozen=True, kw_only=True)
class Accounts(fm.Scaffold):
    """SCAFFOLD whose clients add up what they computed and what the server decoded."""

    client_state = ("c_i", "computed", "received")

    def finish(self, y, s, c, grad):
        uploads, own = super().finish(y, s, c, grad)
        return uploads, own | {"computed": c.own["computed"] + uploads["delta"]}

    def delivered(self, upload, own, c):
        upload, own = super().delivered(upload, own, c)
        return upload, own | {"received": c.own["received"] + upload["delta"]}


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_codec_without_loss_changes_nothing(case):
    how = {"rounds": 4, "local_epochs": 1, "batch_size": 8}
    plain, coded = (train(LOGISTIC, case.make(), "batched", uplink=link, **how) for link in (None, LOSSLESS))
    close(coded.params, plain.params, 1e-12)
    for name, v in plain.server_state.items():
        close(coded.server_state[name], v, 1e-12, name)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_server_adds_what_it_decodes(engine):
    """Half of each update is a server step size of one half, exactly; with feedback, the other half comes later."""
    half = train(LOGISTIC, fm.FedAvg(lr=LR, server_lr=0.5), engine, **EPOCHS)
    assert torch.equal(train(LOGISTIC, fm.FedAvg(lr=LR), engine, uplink=HALF, **EPOCHS).params, half.params)
    feedback = train(LOGISTIC, fm.FedAvg(lr=LR), engine, uplink=ErrorFeedback(HALF), **EPOCHS)
    assert not torch.allclose(feedback.params, half.params)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("codec", [TopK(0.2), Sign(), RandomK(0.3), Quantize(2), [Rotate(), Quantize(1)]], ids=str)
def test_residuals_are_what_was_not_received(codec, engine):
    """Σ δ_i − Σ decoded = residual, for clients that take part in some rounds only, and not at all."""
    result = train(LOGISTIC, Accounts(lr=LR), engine, uplink={"delta": ErrorFeedback(codec)}, rounds=14, **EPOCHS)
    for i in sorted({i for cohort in COHORTS for i in cohort}):
        own = result.client_state(i)
        assert float(own["codec.delta"].abs().max()) > 0
        close(own["computed"] - own["received"], own["codec.delta"], 1e-12)
    assert result.client_state(6) == {}


FOLLOWED = {
    fm.Scaffold: ("c", "c_i", 1),
    fm.ScaffoldM: ("c", "c_i", 1),
    fm.FedGamma: ("c", "c_i", 1),
    fm.FedDyn: ("h", "lambda_i", 1),
    fm.FedSpeed: ("h", "h_i", 1),
    fm.FedSMOO: ("h", "h_i", 1),
}
"""The server's state that is Σ p_i of the clients' state."""


@pytest.mark.parametrize("link", LOSSY.values(), ids=LOSSY)
@pytest.mark.parametrize("method", FOLLOWED, ids=lambda method: method.__name__)
@pytest.mark.extended
def test_server_state_stays_the_mean_of_the_clients(method, link):
    """c = Σ p_i c_i and its like hold whatever the codec loses."""
    server, client, _ = FOLLOWED[method]
    result = train(LOGISTIC, method(lr=LR), "batched", uplink=link, rounds=9, local_epochs=1, batch_size=8)
    states = [result.client_state(i).get(client, torch.zeros(D)).numpy() for i in range(len(LOGISTIC))]
    assert max(np.abs(v).max() for v in states) > 1e-4
    close(result.server_state[server], sum(p * v for p, v in zip(LOGISTIC.p, states, strict=True)), 1e-12)


def test_numbers_describe_what_was_decoded():
    """FedExP compares ‖δ_i‖² with the norm of the mean. With a codec that halves, both are those of half the updates."""

    class Watched(fm.FedExP):
        seen: list = []

        def server(self, x, state, agg, ctx):
            self.seen.append((agg["q"], agg["mean"].square().sum()))
            return super().server(x, state, agg, ctx)

    train(LOGISTIC, Watched(lr=LR), "batched", fm.FixedCohorts([[0]], [[1.0]]), uplink=HALF, rounds=3, **EPOCHS)
    assert all(torch.allclose(q, norm2, rtol=1e-12) for q, norm2 in Watched.seen)


def test_what_delivered_returns_is_checked():
    class Forgets(fm.FedAvg):
        def delivered(self, upload, own, c):
            return own

    with pytest.raises(ValueError, match="Forgets: 'delivered' must return uploads and state, two dictionaries"):
        train(LOGISTIC, Forgets(lr=LR), "batched", uplink=HALF, **EPOCHS)


def test_changes_that_the_server_follows_have_no_residual():
    """SCAFFOLD's next change contains what was lost of the last; a residual would add it twice."""
    result = train(LOGISTIC, fm.Scaffold(lr=LR), "batched", uplink=ErrorFeedback(TopK(0.2)), **EPOCHS)
    assert set(result.client_state(0)) == {"c_i", "codec.delta"}
    result = train(LOGISTIC, fm.FedSMOO(lr=LR), "batched", uplink=ErrorFeedback(TopK(0.2)), **EPOCHS)
    assert set(result.client_state(0)) == {"h_i", "mu_i", "codec.delta"}


@pytest.mark.parametrize("link", LOSSY.values(), ids=LOSSY)
@pytest.mark.parametrize("method", [fm.FedMoS, fm.Scaffold, fm.FedCM, fm.Mime], ids=lambda method: method.__name__)
def test_engines_agree(method, link):
    loop, batched = (train(LOGISTIC, method(lr=LR), engine, uplink=link, **EPOCHS) for engine in ENGINES)
    close(batched.params, loop.params)
    for i in range(len(LOGISTIC)):
        for name, v in loop.client_state(i).items():
            close(batched.client_state(i)[name], v, what=name)


ALL = LOSSY | {
    "Float16": Float16(),
    "Sign": ErrorFeedback(Sign()),
    "1 bit": ErrorFeedback([Rotate(), Quantize(1)]),
    "TopK": [TopK(0.4), Quantize(8)],
}


@pytest.mark.extended
@pytest.mark.parametrize("link", ALL.values(), ids=ALL)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_engines_agree_for_every_algorithm_and_codec(case, link):
    how = {"uplink": link, "rounds": 5, "local_epochs": 1, "batch_size": 8}
    loop, batched = (train(LOGISTIC, case.make(), engine, **how) for engine in ENGINES)
    close(batched.params, loop.params)


@pytest.mark.extended
@pytest.mark.parametrize("method", [fm.FedAvg, fm.Scaffold], ids=lambda method: method.__name__)
def test_compiled_programs_agree(method, monkeypatch):
    """Jobs are padded, and the gradient is compiled; codecs are not."""
    how = {"uplink": ErrorFeedback([Rotate(), Quantize(4)]), "downlink": Quantize(8)} | EPOCHS
    batched = train(LOGISTIC, method(lr=LR), "batched", **how)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        compiled = train(LOGISTIC, method(lr=LR), "batched", **how)
    assert compiled.info["compiled"]
    close(compiled.params, batched.params)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_bytes_are_those_of_the_code(case):
    """Vectors are coded, numbers are not, and uploads of the extra phase count once each."""
    codec = Quantize(4)
    result = train(LOGISTIC, case.make(), "batched", rounds=2, uplink=codec, local_epochs=1)
    down, up = case.wire
    for record in result.history:
        vectors = up + (case.name == "Stem" and record.round == 1)
        assert record.bytes_down == len(record.cohort) * down * D * NUMBER
        assert record.bytes_up == len(record.cohort) * (vectors * codec.nbytes(D) + case.numbers * NUMBER)


def test_only_named_uploads_are_coded():
    codec = TopK(0.2)
    result = train(LOGISTIC, fm.Scaffold(lr=LR), "batched", rounds=2, uplink={"change": codec}, **EPOCHS)
    size = D * NUMBER + codec.nbytes(D, torch.float64)
    assert [r.bytes_up for r in result.history] == [len(r.cohort) * size for r in result.history]


def test_the_extra_phase_has_the_codec_without_feedback():
    """Clients keep no residual in it, so an unbiased codec stays unbiased."""
    feedback = ErrorFeedback(RandomK(0.3))
    every = train(LOGISTIC, fm.Mime(lr=LR), "batched", uplink=feedback, **EPOCHS)
    named = train(LOGISTIC, fm.Mime(lr=LR), "batched", uplink={"delta": feedback, "gradient": RandomK(0.3)}, **EPOCHS)
    assert torch.equal(every.params, named.params)
    assert set(every.client_state(0)) == {"codec.delta"}


def test_averaged_optimiser_state_is_coded_where_it_is_named():
    local, codec = fm.local.SGD(momentum=0.5, average=True), Float16()
    for link, coded in ((codec, 1), ({"delta": codec, "local.m": codec}, 2), ({"local.m": codec}, 1)):
        result = train(LOGISTIC, fm.FedAvg(lr=LR), "batched", rounds=2, uplink=link, local=local, **EPOCHS)
        first = result.history[0]
        assert first.bytes_up == len(first.cohort) * D * (coded * 2 + (2 - coded) * NUMBER)


def test_streams_differ_by_place_name_and_client():
    keys = torch.arange(3)
    found = [link_key(keys, place, name) for place in ("train", "prepare", "down") for name in ("delta", "x")]
    assert {tuple(key.shape) for key in found} == {(3,)}
    assert len(torch.cat(found).unique()) == 18
    assert torch.equal(link_key(keys[1], "train", "delta"), found[0][1])


@pytest.mark.parametrize("link", [LOSSY["feedback"], LOSSY["chain"]], ids=["feedback", "chain"])
def test_merged_runs_are_the_runs_alone(link):
    how = {"rounds": 4, "local_steps": 3, "batch_size": 4, "engine": "batched", "uplink": link, "downlink": Quantize(8)}
    how |= {"model": LOGISTIC.model(), "data": LOGISTIC.data(), "selection": fm.Uniform(m=3)}
    runs = [how | {"algorithm": fm.Scaffold(lr=lr), "seed": seed} for seed, lr in ((1, LR), (2, LR), (1, LR / 2))]
    for merged, alone in zip(fm.run_many(runs), (fm.run(**run) for run in runs), strict=True):
        assert torch.equal(merged.params, alone.params)
        for i in range(len(LOGISTIC)):
            assert all(torch.equal(v, merged.client_state(i)[name]) for name, v in alone.client_state(i).items())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_late_client_keeps_its_residual(engine):
    """It counts as not sampled: what it computed is not in the model, so what it sent is not forgotten either."""
    cohorts = [[0, 1], [0, 1], [0, 1]]
    speed = fm.PerClient([1000.0, 1e-3, *[1000.0] * 5])
    link = {"uplink": ErrorFeedback(TopK(0.2)), "downlink": Quantize(4)}
    timed = train(
        LOGISTIC,
        fm.FedAvg(lr=LR),
        engine,
        fm.FixedCohorts(cohorts, [[0.5, 0.5]] * 3),
        rounds=3,
        system=fm.System(speed=speed, deadline=100.0),
        **link,
        **EPOCHS,
    )
    alone = train(LOGISTIC, fm.FedAvg(lr=LR), engine, fm.FixedCohorts([[0]], [[1.0]]), rounds=3, **link, **EPOCHS)
    assert [record.late for record in timed.history] == [[1]] * 3
    assert timed.client_state(1) == {}
    close(timed.params, alone.params)
    for name, v in alone.client_state(0).items():
        close(timed.client_state(0)[name], v, what=name)


def test_clients_that_do_not_upload_keep_their_residual():
    result = train(LOGISTIC, fm.FedAvg(lr=LR), "batched", fm.OCS(m=2, d=6), uplink=ErrorFeedback(TopK(0.2)), **EPOCHS)
    codec = TopK(0.2)
    for record in result.history:
        sent = len(record.uploaded) * codec.nbytes(D, torch.float64) + len(record.cohort) * NUMBER
        assert record.bytes_up == sent
    uploaded = {i for record in result.history for i in record.uploaded}
    assert {i for i in range(len(LOGISTIC)) if result.client_state(i)} == uploaded


@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_continues_with_its_residuals(engine, tmp_path):
    how = {"uplink": ErrorFeedback(TopK(0.2)), "downlink": Quantize(4), **EPOCHS}
    whole = train(LOGISTIC, fm.Scaffold(lr=LR), engine, rounds=9, **how)
    train(LOGISTIC, fm.Scaffold(lr=LR), engine, rounds=4, out=tmp_path, **how)
    resumed = train(LOGISTIC, fm.Scaffold(lr=LR), engine, rounds=9, out=tmp_path, resume=True, **how)
    assert torch.equal(resumed.params, whole.params)
    for i in range(len(LOGISTIC)):
        assert all(torch.equal(v, resumed.client_state(i)[name]) for name, v in whole.client_state(i).items())
    with pytest.raises(ValueError, match=r"its 'uplink' is 'ErrorFeedback\(codec=TopK\(fraction=0.2\)\)', got"):
        train(
            LOGISTIC,
            fm.Scaffold(lr=LR),
            engine,
            rounds=9,
            out=tmp_path,
            resume=True,
            **how | {"uplink": ErrorFeedback(TopK(0.3))},
        )


@pytest.mark.parametrize("link", [RandomK(0.3), ErrorFeedback(RandomK(0.3)), TopK(0.2), [Rotate(), Quantize(4)]])
def test_an_update_that_is_not_finite_is_found(link):
    with pytest.raises(fm.DivergenceError, match="The update of client 0 in round 1 is not finite"):
        train(QUADRATIC, fm.FedAvg(lr=1e300), "batched", uplink=link, **EPOCHS)


@dataclass(frozen=True)
class Dithered(Scaled):
    """Draws from PyTorch's generator."""

    def encode(self, v, key):
        return {"values": v + 1e-3 * torch.rand_like(v)}


def test_a_codec_that_draws_globally_is_named():
    with pytest.raises(ValueError, match="FedAvg or Dithered: 'finish' or 'encode' must not draw from PyTorch's"):
        train(LOGISTIC, fm.FedAvg(lr=LR), "batched", uplink=Dithered(), **EPOCHS)


def test_simulated_time_is_that_of_the_code():
    """A client that needs no time to compute, and a second for each byte in each direction."""
    system = fm.System(speed=1e12, down=1.0, up=1.0)
    selection, link = fm.FixedCohorts([[0]], [[1.0]]), {"uplink": Quantize(4), "downlink": Quantize(8)}
    result = train(LOGISTIC, fm.FedAvg(lr=LR), "batched", selection, rounds=3, system=system, **link, **EPOCHS)
    down, up = [D * NUMBER, *[Quantize(8).nbytes(D)] * 2], Quantize(4).nbytes(D)
    close([record.clock for record in result.history], np.cumsum([one + up for one in down]), 1e-6)
