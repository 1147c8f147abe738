"""Local privacy: the noise of each client, ε by participation, codecs, rules on rows, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import fedmos as fm
from fedmos.codecs import ErrorFeedback, Quantize, TopK
from fedmos.core.composition import recast
from helpers.conformance import EACH_SENDING, LOGISTIC, LR, SENDING, close
from helpers.distinguishing import DELTA, Constant, Still, lower_bound
from helpers.gaussian_curve import exact_epsilon
from helpers.private import CLIENTS, arguments, private

SOME = [case for case in EACH_SENDING if str(case) in ("Mime()", "FedExP(eps=0.1,average=True)")]


def local(clip=0.05, noise: float = 1.0, **more) -> fm.privacy.Local:
    return fm.privacy.Local(clip, noise, 1e-3, **more)


def run(algorithm: fm.Algorithm, engine: str = "batched", **changes) -> fm.Result:
    return private(algorithm, engine, **{"privacy": local(), **changes})


def rows(algorithm: fm.Algorithm, privacy, rounds: int = 1, **changes) -> list[dict[str, np.ndarray]]:
    """The uploads of all clients in each round, as the server gets them."""
    seen: list[dict[str, np.ndarray]] = []
    base = type(algorithm)

    class Watched(base):
        @property
        def reduce(self):
            declared = dict(super().reduce)
            return declared | {f"rows of {upload}": (upload, "each") for upload, _ in declared.values()}

        def server(self, x, state, agg, ctx):
            seen.append({n.removeprefix("rows of "): v.numpy().copy() for n, v in agg.items() if "rows of" in n})
            return super().server(x, state, {n: v for n, v in agg.items() if "rows of" not in n}, ctx)

    made = recast(algorithm, Watched)
    run(made, "loop", rounds=rounds, selection=fm.Full(), privacy=privacy, **changes)
    return seen


def test_each_client_has_noise_of_its_own():
    exact, noisy = (rows(fm.FedAvg(lr=LR), local(0.03, z), 10) for z in (0.0, 4.0))
    assert np.linalg.norm(exact[0]["delta"], axis=-1).max() <= 0.03 * (1 + 1e-9)
    first = noisy[0]["delta"] - exact[0]["delta"]
    assert np.unique(first.round(12)).size == first.size  # no number twice
    noise = np.stack([v["delta"] for v in noisy]) / (4.0 * 0.03)  # (rounds, clients, D); updates are within ± 1/4
    assert noise.std() == pytest.approx(1.0, rel=0.1)
    correlation = np.corrcoef(noise.reshape(10, CLIENTS, -1).swapaxes(0, 1).reshape(CLIENTS, -1))
    assert np.abs(correlation - np.eye(CLIENTS)).max() < 0.4
    assert stats.kstest(first.ravel() / (4.0 * 0.03), "norm").pvalue > 1e-3


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in SOME else pytest.mark.extended) for c in EACH_SENDING], ids=str
)
def test_what_clients_send_is_bounded(case):
    algorithm = case.make()
    (sent,) = rows(algorithm, local(0.03, 0.0))
    names = [f if isinstance(f, str) else f[0] for f in algorithm.up]
    squares = sum((sent[name].reshape(CLIENTS, -1) ** 2).sum(1) for name in names if name in sent)
    assert np.sqrt(squares).max() <= 0.03 * (1 + 1e-9)


def test_noise_of_several_groups():
    """Both phases, and each upload with a bound of its own, share the noise: √k times as much."""
    one = rows(fm.FedAvg(lr=LR), local(0.5, 4.0))[0]["delta"] - rows(fm.FedAvg(lr=LR), local(0.5, 0.0))[0]["delta"]
    bounds = {"delta": 0.5, "change": 0.01}
    two = rows(fm.Scaffold(lr=LR), local(bounds, 4.0))[0]["delta"]
    two = two - rows(fm.Scaffold(lr=LR), local(bounds, 0.0))[0]["delta"]
    np.testing.assert_allclose(two, math.sqrt(2) * one, atol=1e-12)


@pytest.mark.parametrize("noise", [0.7, 5.0, 40.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_epsilon_by_participations(noise, delta):
    for selection, rounds, times in (
        (fm.Full(), 30, 30),
        (fm.Cyclic(m=30), 30, 8),
        (fm.FixedCohorts([[0], [0, 1], [2]]), 5, 4),
        (fm.Bernoulli(rate=0.1), 30, 30),
        (fm.Uniform(m=1), 7, 7),
    ):
        how = {"rounds": rounds, "delta": delta, "selection": selection, "clients": 100, "mechanism": "Local"}
        wanted = exact_epsilon(noise / (2 * math.sqrt(times)), delta)
        assert fm.privacy.epsilon(noise, **how) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_records_and_budgets():
    spent = [r.epsilon for r in run(fm.FedAvg(lr=LR), "loop", rounds=6, selection=fm.Cyclic(m=3)).history]
    assert spent == [spent[0]] * 3 + [spent[3]] * 3
    assert spent[0] == pytest.approx(exact_epsilon(0.5, 1e-3))
    stopped = run(
        fm.FedAvg(lr=LR), "loop", rounds=6, selection=fm.Cyclic(m=3), privacy=local(budget=(spent[0] + spent[3]) / 2)
    )
    assert (len(stopped.history), stopped.info["stopped"]) == (3, "privacy budget")


def test_the_server_is_that_of_the_run_without_privacy():
    """Without noise and clipping: weights, cohorts and results are the same."""
    how = {"selection": fm.MD(m=4), "local": fm.local.SGD(momentum=0.5)}
    for algorithm in (fm.Scaffold(lr=LR), fm.FedExP(lr=LR)):
        plain, loose = (run(algorithm, privacy=p, **how) for p in (None, local(1e9, 0.0)))
        close(plain.params, loose.params, 1e-12)
        assert [r.weights for r in plain.history] == [r.weights for r in loose.history]


def test_state_follows_what_the_server_gets():
    """SCAFFOLD's c is the mean of c_i, also with noise and codecs."""
    data = LOGISTIC.data()
    equal = fm.FederatedData.from_arrays([data.client(i) for i in range(CLIENTS)], importance=[1] * CLIENTS)
    for uplink in (None, TopK(0.3)):
        result = run(fm.Scaffold(lr=LR), "loop", data=equal, selection=fm.Full(), uplink=uplink)
        own = torch.stack([result.clients[i]["c_i"] for i in range(CLIENTS)])
        close(result.server_state["c"], own.mean(0), 1e-9)


def test_codecs_apply_to_noisy_uploads():
    """Bytes are those of the codec, and every number that arrives is one that the codec can send."""
    plain, coded = (rows(fm.FedAvg(lr=LR), local(0.5, 2.0), uplink=u)[0]["delta"] for u in (None, TopK(0.2)))
    kept = coded != 0
    assert kept.sum(1).max() <= math.ceil(0.2 * coded.shape[1])
    np.testing.assert_allclose(coded[kept], plain[kept])
    sizes = [run(fm.FedAvg(lr=LR), "loop", rounds=1, uplink=TopK(0.2), privacy=p).history[0] for p in (None, local())]
    assert sizes[0].bytes_up == sizes[1].bytes_up


def test_numbers_keep_their_noise_under_codecs():
    """FedExP would compute ‖δ_i‖² again from what is decoded; the number that is sent is the noisy one."""
    sent = rows(fm.FedExP(lr=LR), local(0.5, 2.0), uplink=TopK(0.2))[0]
    plain = rows(fm.FedExP(lr=LR), local(0.5, 2.0))[0]
    np.testing.assert_array_equal(sent["norm2"], plain["norm2"])


@pytest.mark.parametrize("case", SOME, ids=str)
def test_engines_agree(case):
    one, other = (run(case.make(), engine, uplink=Quantize(4)) for engine in ("loop", "batched"))
    close(one.params, other.params, 1e-9)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize("case", SENDING, ids=str)
def test_every_algorithm(case, tmp_path):
    how = {"uplink": ErrorFeedback(Quantize(4)), "selection": fm.Uniform(m=3), "rounds": 5}
    whole = run(case.make(), "loop", **how)
    close(whole.params, run(case.make(), "batched", **how).params, 1e-8)
    for rounds in (2, 5):
        parts = run(case.make(), "loop", out=tmp_path / "run", resume=True, **how | {"rounds": rounds})
    assert torch.equal(parts.params, whole.params)


def test_a_resumed_run_is_the_run(tmp_path):
    whole = run(fm.Scaffold(lr=LR), "loop", rounds=5)
    for rounds in (2, 5):
        parts = run(fm.Scaffold(lr=LR), "loop", rounds=rounds, out=tmp_path / "run", resume=True)
    assert torch.equal(parts.params, whole.params)
    assert [r.epsilon for r in parts.history] == [r.epsilon for r in whole.history]


def test_merged_runs():
    given = arguments(fm.Scaffold(lr=LR), rounds=3, privacy=local())
    given.pop("seed")
    for seed, result in zip((1, 2), fm.run_many([{"seed": 1}, {"seed": 2}], **given), strict=True):
        close(result.params, fm.run(**given, seed=seed).params, 1e-9)


def test_rows_quorums_and_attacks_are_permitted():
    """What the server does with noisy uploads reveals nothing more."""
    how = {"selection": fm.Full(), "aggregation": fm.aggregation.Median(), "system": fm.System(quorum=0.5)}
    result = run(fm.FedAvg(lr=LR), "loop", update_norms=True, attack=fm.attacks.SignFlip(share=0.2), **how)
    assert len(result.history) == 4
    assert min(result.history[0].update_norms) > 0.05  # noise included


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"selection": fm.PowerOfChoice(m=2, d=4)}, "PowerOfChoice because it asks clients for losses or gradients"),
        ({"selection": fm.OCS(m=2, d=4)}, "OCS because its clients report update_norm without noise"),
        ({"batchnorm": "local"}, "Cannot use privacy= with batchnorm='local' because clients upload running"),
        ({"class_weights": "balanced", "loss": "cross_entropy"}, "Cannot use privacy= with class_weights='balanced'"),
        ({"local": fm.local.Adam(average=True)}, "averaged Adam or AdamW because noise makes"),
        ({"algorithm": fm.LocalOnly(lr=LR)}, "Cannot use privacy= with LocalOnly because its clients send nothing"),
        ({"privacy": local({"delta": 1.0})}, "Local: 'clip' must have a bound for each upload of Scaffold, got none"),
    ],
    ids=lambda v: "" if isinstance(v, str) else str(next(iter(v))),
)
def test_what_reveals_more_is_refused(changes, sentence):
    with pytest.raises(ValueError) as error:
        run(**{"algorithm": fm.Scaffold(lr=LR)} | changes)
    assert sentence in str(error.value)


@pytest.mark.extended
def test_an_attack_does_not_prove_more_than_epsilon():
    """On the upload of one client with data of either sign. With a tenth of the noise, the same attack proves more."""

    def sent(sign: float, noise: float, seed: int) -> np.ndarray:
        seen: list[float] = []
        data = fm.FederatedData.from_arrays([(np.full((2, 1), sign, dtype=np.float32), np.zeros((2, 1)))])
        how = {"rounds": 2000, "local_steps": 1, "loss": lambda outputs, targets: outputs.mean(), "eval_every": 2000}
        privacy = fm.privacy.Local(clip=0.5, noise_multiplier=noise, delta=DELTA)
        fm.run(Still(), data, Constant(seen=seen), fm.Full(), seed=seed, engine="loop", privacy=privacy, **how)
        return np.array(seen) / 0.5

    epsilon = fm.privacy.epsilon(2.4, rounds=1, delta=DELTA, selection=fm.Full(), clients=1, mechanism="Local")
    assert 0.1 < lower_bound(sent(1.0, 2.4, 0), sent(-1.0, 2.4, 1)) < epsilon
    assert lower_bound(sent(1.0, 0.24, 0), sent(-1.0, 0.24, 1)) > epsilon


def test_secure_aggregation_adds_noisy_uploads():
    """Values beyond 'clip' are noise, and are not clamped."""
    how = {"selection": fm.Uniform(m=4)}
    plain, secure = (run(fm.FedAvg(lr=LR), aggregation=rule, **how) for rule in (None, fm.aggregation.Secure(bits=40)))
    close(plain.params, secure.params, 1e-6)
    assert sum(record.saturated for record in secure.history) == 0
