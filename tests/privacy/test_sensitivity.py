"""The most by which one client can change the sums of a round."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.codecs import ErrorFeedback, Quantize, TopK
from fedmos.privacy.clipping import norm
from fedmos.privacy.compose import NoisySums
from helpers.conformance import EACH_SENDING, LOGISTIC, LR, SENDING
from helpers.private import CLIENTS, Sums, changed_data, distance, gaussian, private

CLIP = 0.03
EVERYONE = list(range(CLIENTS))


def check(algorithm: fm.Algorithm, rounds: int, clip: object = CLIP, clients=(0,), **changes: object) -> None:
    """Remove a client, and change its data, after some rounds; what the server sent before stays the same."""
    how = {"privacy": gaussian(clip, 0.0), **changes}
    sums = Sums(algorithm, **how)
    sums.play(rounds)
    groups, slack = math.sqrt(sums.groups()), 1 + 1e-9
    whole = sums.of(EVERYONE, sent=EVERYONE)
    assert all(np.isfinite(v).all() for v in whole.values())
    moved = []
    for client in clients:
        rest = sums.of([i for i in EVERYONE if i != client], sent=EVERYONE)
        moved.append(distance(whole, rest, clip))
        assert moved[-1] <= groups * slack
        other = Sums(algorithm, data=changed_data(client), **how)
        other.state.restore(sums.state.snapshot({}, False))
        other._prepared = sums._prepared
        assert distance(whole, other.of(EVERYONE, sent=EVERYONE), clip) <= 2 * groups * slack
    assert max(moved) > 0.5 * groups  # the bound is reached, more or less


@pytest.mark.parametrize("case", EACH_SENDING, ids=str)
def test_every_algorithm(case):
    check(case.make(), 0, engine="loop")


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("case", SENDING, ids=str)
def test_every_algorithm_with_state(case, engine, rounds):
    check(case.make(), rounds, clients=(0, 3, 6), engine=engine)


@pytest.mark.parametrize(
    "case", [c for c in EACH_SENDING if c.name in ("Scaffold", "Mime", "FedExP", "FedNova")], ids=str
)
def test_bounds_by_upload(case):
    algorithm = case.make()
    bounds = {"delta": 0.02, "change": 0.05, "tau": 2.0, "norm2": 1e-4, "gradient": 0.1, "d": 0.1}
    names = [f if isinstance(f, str) else f[0] for f in (*algorithm.up, *algorithm.prepare_up)]
    check(algorithm, 1, {name: bounds.get(name, 0.1) for name in names}, engine="loop")


@pytest.mark.parametrize("codec", [Quantize(1), ErrorFeedback(TopK(0.2))], ids=str)
def test_what_is_decoded_is_bounded(codec):
    """A codec may make vectors longer, so the bound holds for what is summed."""
    check(fm.Scaffold(lr=LR), 2, uplink=codec, engine="loop")


@pytest.mark.parametrize("local", [fm.local.Adam(average=True), fm.local.SGD(momentum=0.9, keep=True)], ids=str)
def test_local_optimisers(local):
    check(fm.FedCM(lr=LR), 1, local=local, engine="loop")


def test_late_clients_leave_the_sums_of_others_as_they_are():
    """Weights are not scaled up, in neither phase: a late client is one that was not there."""
    slow = fm.PerClient([1.0, *[1e6] * (CLIENTS - 1)])
    system = fm.System(speed=slow, down=1e12, up=1e12, deadline=1.0)
    for algorithm in (fm.Mime(lr=LR), fm.FedDyn(lr=LR), fm.FedCM(lr=LR), fm.FedNova(lr=LR)):
        late, absent = (
            private(algorithm, "loop", selection=fm.FixedCohorts([cohort, EVERYONE]), system=clock, rounds=1)
            for cohort, clock in ((EVERYONE, system), (EVERYONE[1:], None))
        )
        assert late.history[0].late == [0]
        assert torch.equal(late.params, absent.params)


def test_algorithms_do_not_learn_the_size_of_a_cohort():
    """S and W are those that are expected, for clients and server."""

    class Curious(fm.FedAvg):
        seen: list = []

        def finish(self, y, s, c, grad):
            self.seen.append((c.S, c.W))
            return super().finish(y, s, c, grad)

        def server(self, x, state, agg, ctx):
            self.seen.append((ctx.S, ctx.W))
            return super().server(x, state, agg, ctx)

    sums = Sums(Curious(lr=LR), engine="loop", privacy=gaussian(CLIP, 0.0))
    sums.play(1)
    sums.of([0, 1])
    assert set(Curious.seen) == {(CLIENTS, 1.0)}


def test_updates_within_the_bound_are_not_changed():
    """Without noise and clipping, a private round is FedAvg with equal weights."""
    how = {"rounds": 3, "local_steps": 3, "batch_size": 4, "dtype": torch.float64, "loss": LOGISTIC.loss}
    given = (LOGISTIC.model(), LOGISTIC.data(), fm.Scaffold(lr=LR))
    loose = fm.run(*given, fm.Uniform(m=4), privacy=gaussian(1e6, 0.0), **how)
    equal = fm.FederatedData.from_arrays([LOGISTIC.data().client(i) for i in range(CLIENTS)], importance=[1] * CLIENTS)
    plain = fm.run(given[0], equal, given[2], fm.Uniform(m=4, weights="mean"), **how)
    assert torch.allclose(loose.params, plain.params, rtol=1e-12)
    assert loose.history[0].weights == [0.25] * 4


@pytest.mark.parametrize("algorithm", [fm.Mime(lr=LR), fm.Stem(lr=LR)], ids=lambda a: type(a).__name__)
def test_extra_phase_counts_nobody_where_all_are_late(algorithm):
    """Otherwise one client in time would remove the others from the sum of the extra phase."""
    slow = fm.PerClient([1e6, *[1.0] * (CLIENTS - 1)])
    system = fm.System(speed=slow, down=1e12, up=1e12, deadline=1.0)
    late, nobody = (
        private(algorithm, "loop", selection=selection, system=clock, rounds=1, availability=available)
        for selection, clock, available in (
            (fm.FixedCohorts([EVERYONE[1:], EVERYONE]), system, None),
            (fm.FixedCohorts([EVERYONE]), None, Nobody()),
        )
    )
    assert late.history[0].late == EVERYONE[1:]
    assert torch.equal(late.params, nobody.params)
    assert all(torch.equal(v, nobody.server_state[name]) for name, v in late.server_state.items())


class Nobody(fm.Availability):
    def available(self, seed, t, N):
        return np.zeros(N, dtype=bool)


class FailsInTraining(fm.Mime):
    """The updates of two clients are not finite; their gradients of the extra phase are."""

    def finish(self, y, s, c, grad):
        uploads, own = super().finish(y, s, c, grad)
        return {"delta": uploads["delta"] / (c.p > np.sort(LOGISTIC.p)[1] + 1e-9)}, own


def test_late_clients_do_not_change_what_counts_of_clients_that_fail():
    order = np.argsort(LOGISTIC.p)
    slowest = int(order[-1])
    slow = fm.PerClient([1.0 if i == slowest else 1e6 for i in EVERYONE])
    system = fm.System(speed=slow, down=1e12, up=1e12, deadline=1.0)
    how = {"system": system, "rounds": 1, "on_bad_update": "drop", "privacy": gaussian(CLIP, 0.0)}
    with_it, without = (
        private(FailsInTraining(lr=LR), "loop", selection=fm.FixedCohorts([cohort, EVERYONE]), **how)
        for cohort in (EVERYONE, [i for i in EVERYONE if i != slowest])
    )
    assert with_it.history[0].late == [slowest]
    assert torch.equal(with_it.server_state["c"], without.server_state["c"])
    assert torch.equal(with_it.params, without.params)


def test_norms_of_long_vectors_are_exact():
    """In float32, a norm of many numbers on a CPU would be too small, and the clipped vector too long."""
    v = torch.full((2, 4_000_123), 0.1)
    v[1] /= 100
    norms = norm({"a": v, "b": v[:, :5]}, torch.ones(2, 1))
    exact = torch.cat([v, v[:, :5]], dim=1).double().norm(dim=1)
    assert norms.double().tolist() == pytest.approx(exact.tolist(), rel=1e-5)


@pytest.fixture
def released(monkeypatch):
    """The noisy sums of a run, by round, phase and upload; a later run gets the same, whatever its sums are."""
    found = {}

    def noisy(self, phase, upload, total, state, ctx):
        key = (ctx.t, phase, upload)
        clip = self._privacy_bound_in(next(g for g in self._privacy_sums.groups if upload in g.names), state)
        before = found.setdefault(key, total.clone())
        assert float((total - before).norm()) <= 2 * float(clip) * (1 + 1e-9)
        return before.clone()

    for kind in (NoisySums, *NoisySums.__subclasses__()):
        if "_privacy_noisy" in vars(kind):
            monkeypatch.setattr(kind, "_privacy_noisy", noisy)
    return found


def check_released(case, released, **changes: object) -> None:
    how = {"selection": fm.FixedCohorts([[0, 2, 3], [4, 0], [1, 6], [5, 0, 2]]), **changes}
    one = private(case.make(), **how)
    assert len(released) >= 4
    other = private(case.make(), data=changed_data(0), **how)
    assert torch.equal(one.params, other.params)
    assert set(one.server_state) == set(other.server_state)
    for name, v in one.server_state.items():
        assert torch.equal(v, other.server_state[name]), name


@pytest.mark.parametrize(
    "case", [c for c in EACH_SENDING if c.name in ("Scaffold", "Mime", "Stem", "FedExP", "FedMoS")], ids=str
)
def test_server_and_messages_depend_on_noisy_sums_only(case, released):
    """With the same noisy sums, other data of a client change neither the model nor the state of the server."""
    check_released(case, released)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "loop", "uplink": ErrorFeedback(TopK(0.4)), "downlink": Quantize(4)},
        {"privacy": fm.privacy.MatrixFactorization(CLIP, 1.0, 1e-3, bands=3)},
        {"privacy": gaussian(CLIP, 1.0)},
    ],
    ids=["codecs", "correlated", "independent"],
)
@pytest.mark.parametrize("case", EACH_SENDING, ids=str)
def test_every_server_depends_on_noisy_sums_only(case, changes, released):
    check_released(case, released, **changes)


def test_adaptive_bounds_depend_on_noisy_sums_only(released):
    adaptive = {"privacy": gaussian(CLIP, 1.0, adaptive=True)}
    check_released(next(c for c in EACH_SENDING if c.name == "FedMoS"), released, **adaptive)


def check_absent_client(case, **changes: object) -> None:
    how = {"selection": fm.FixedCohorts([[1, 2, 3], [4, 5], [1, 6]]), "rounds": 3, **changes}
    one, other = (private(case.make(), data=data, **how) for data in (LOGISTIC.data(), changed_data(0)))
    assert torch.equal(one.params, other.params)
    assert all(torch.equal(v, other.server_state[name]) for name, v in one.server_state.items())


@pytest.mark.parametrize("case", [c for c in EACH_SENDING if c.name in ("FedDyn", "FedCM", "Mime", "FedNova")], ids=str)
def test_a_client_that_takes_no_part_changes_nothing(case):
    """Its samples and their number have no effect on weights, factors, or other clients."""
    check_absent_client(case, engine="loop")


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("case", EACH_SENDING, ids=str)
def test_a_client_that_takes_no_part_changes_nothing_in_any_algorithm(case, engine):
    check_absent_client(case, engine=engine)
    check_absent_client(case, engine=engine, uplink=Quantize(4))
