"""Asynchronous rounds against an event queue in plain Python, and the same bits in every way to compute them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.engine import batches
from fedmos.engine.buffer import check_bufferable
from fedmos.engine.event_queue import EventQueue, Flight
from helpers.asynchronous import METHODS, Schedule, options, random_schedule, simulate
from helpers.conformance import CASES
from helpers.extended import Extended
from helpers.jobs import federation


@dataclass(frozen=True)
class SumsOfRows(fm.Algorithm):
    """A server that reads single updates."""

    lr: float
    reduce = {"rows": ("delta", "each")}

    def server(self, x, state, agg, ctx):
        return x + agg["rows"].mean(0), {}


@dataclass(frozen=True)
class Adaptive(fm.Algorithm):
    """A client that computes a further gradient if the first one is not zero."""

    lr: float

    def finish(self, y, s, c, grad):
        if bool((y != c.x).any()):
            grad.full(y)
        return super().finish(y, s, c, grad)


@dataclass(frozen=True)
class OverRounds(fm.Algorithm):
    """A client whose step depends on the round, written as documented."""

    lr: float

    def direction(self, y, s, c, grad, k):
        return grad(y) + 0.01 * torch.as_tensor(c.t).to(y) * y, s


@dataclass(frozen=True)
class Warmed(fm.Algorithm):
    """A client that branches on the round."""

    lr: float

    def direction(self, y, s, c, grad, k):
        return (grad(y) if c.t > 2 else 0.5 * grad(y)), s


@dataclass(frozen=True, kw_only=True)
class Probing(fm.Uniform):
    """A selector that asks clients first."""

    def select(self, view):
        view.probe(torch.arange(2))
        return super().select(view)


def train(case: Schedule, algorithm: fm.Algorithm, **changes) -> fm.Result:
    problem = case.problem
    return fm.run(problem.model(), problem.data(), algorithm, **options(case) | {"engine": "batched"} | changes)


def assert_like_oracle(kind, seed: int, engine: str) -> None:
    case = random_schedule(seed)
    x, steps, own = simulate(kind, case)
    result = train(case, kind.algorithm, engine=engine)
    for record, step in zip(result.history, steps, strict=True):
        for name in ("cohort", "versions", "ages", "late", "time", "bytes_down", "bytes_up"):
            assert getattr(record, name) == getattr(step, name), f"{name} of round {record.round}, seed {seed}"
        np.testing.assert_allclose(record.weights, step.weights, rtol=1e-14)
        assert record.abandoned == (not step.cohort)
    np.testing.assert_allclose(result.params.numpy(), x, rtol=1e-9, atol=1e-10, err_msg=f"seed {seed}")
    for i, kept in result.clients.items():
        for name, v in kept.items():
            if name in own[i]:
                np.testing.assert_allclose(v.numpy(), own[i][name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("seed", range(12))
def test_order_versions_ages_and_models_are_those_of_the_event_queue(seed):
    kind = METHODS[seed % len(METHODS)]
    assert_like_oracle(kind, seed, ("batched", "loop")[seed // len(METHODS)])


@pytest.mark.extended
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_two_hundred_schedules(kind):
    for seed in range(200):
        assert_like_oracle(kind, seed, ("batched", "loop")[seed % 2])


def digits(algorithm: fm.Algorithm, **changes) -> fm.Result:
    given = {
        "model": fm.models.mlp(features=64),
        "data": federation(),
        "algorithm": algorithm,
        "selection": fm.Uniform(m=1),
        "rounds": 6,
        "local_steps": 2,
        "batch_size": 4,
        "engine": "batched",
        "eval_every": 6,
        "system": SYSTEM,
        "buffer": fm.Buffer(size=4, concurrency=7),
    }
    return fm.run(**given | changes)


SYSTEM = fm.System(speed=fm.LogNormal(median=100, sigma=1), deadline=5.0, dropout=0.1)


def outcome(result: fm.Result) -> tuple:
    """All that a run came to, without its times."""
    records = [replace(record, seconds=0.0) for record in result.history]
    clients = {i: {name: v.tolist() for name, v in kept.items()} for i, kept in result.clients.items()}
    return result.params.tolist(), records, clients, result.last.tolist()


COMPOSED = {
    "codecs": (
        fm.Scaffold(lr=0.05),
        {"uplink": fm.codecs.ErrorFeedback(fm.codecs.TopK(0.1)), "downlink": fm.codecs.Quantize(8)},
    ),
    "a local optimiser": (fm.FedCM(lr=0.02), {"local": fm.local.AdamW(keep=True)}),
    "an averaged optimiser": (fm.FedAvg(lr=0.02), {"local": fm.local.Adam(average=True)}),
    "a robust rule": (
        fm.FedAvgM(lr=0.05),
        {"aggregation": fm.aggregation.Median(), "attack": fm.attacks.SignFlip(share=0.2)},
    ),
    "a schedule and norms": (fm.FedMoS(lr=0.05), {"lr_decay": fm.schedules.Cosine(6), "update_norms": True}),
    "own parameters": (fm.Scaffold(lr=0.05), {"personal": ["5.*"]}),
    "reports": (fm.FedAvg(lr=0.05), {"selection": fm.UCB(m=1)}),
    "epochs": (fm.FedNova(lr=0.05), {"local_steps": None, "local_epochs": 1}),
    "every declared shape": (Extended(lr=0.05), {"buffer": fm.Buffer(4, 7, staleness=0)}),
}
BRIEFLY = ("codecs", "a robust rule", "every declared shape")


@pytest.mark.parametrize(
    "what", [name if name in BRIEFLY else pytest.param(name, marks=pytest.mark.extended) for name in COMPOSED]
)
def test_the_loop_and_the_batched_engine_agree(what):
    algorithm, changes = COMPOSED[what]
    changes = changes | {"dtype": torch.float64}  # in float32, codecs round some numbers the other way
    loop, batched = (digits(algorithm, engine=engine, **changes) for engine in ("loop", "batched"))
    assert [(r.cohort, r.ages, r.time) for r in loop.history] == [(r.cohort, r.ages, r.time) for r in batched.history]
    assert max(age for record in loop.history for age in record.ages) > 0
    torch.testing.assert_close(loop.params, batched.params, rtol=1e-8, atol=1e-9)


def test_a_number_times_the_round_has_the_precision_of_the_run():
    loop, batched = (digits(OverRounds(lr=0.05), engine=e, dtype=torch.float64) for e in ("loop", "batched"))
    torch.testing.assert_close(loop.params, batched.params, rtol=1e-12, atol=1e-13)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, event: int) -> None:
    """Have the run interrupted when the client of this number starts."""
    start = EventQueue.start

    def counted(queue: EventQueue, flight: Flight) -> None:
        if queue.starts == event:
            raise KeyboardInterrupt
        start(queue, flight)

    monkeypatch.setattr(EventQueue, "start", counted)


def assert_resumes(tmp_path, monkeypatch, event: int, algorithm: fm.Algorithm, **changes) -> None:
    whole = outcome(digits(algorithm, **changes))
    out = tmp_path / str(event)
    with monkeypatch.context() as patched:
        interrupt_at(patched, event)
        assert digits(algorithm, out=out, checkpoint_every=1, **changes).interrupted
    assert outcome(digits(algorithm, out=out, resume=True, **changes)) == whole


@pytest.mark.parametrize("event", [9, 23])
def test_a_run_interrupted_between_two_events_resumes_to_the_same_bits(tmp_path, monkeypatch, event):
    algorithm, changes = COMPOSED["codecs"]
    assert_resumes(tmp_path, monkeypatch, event, algorithm, selection=fm.UCB(m=1), **changes)


@pytest.mark.extended
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_resume_at_twenty_random_events(tmp_path, monkeypatch, kind):
    for event in np.random.default_rng(0).permutation(np.arange(7, 28))[:20].tolist():
        assert_resumes(tmp_path / kind.__name__, monkeypatch, event, kind.algorithm, lr_decay=fm.schedules.Cosine(6))


def test_a_buffer_of_all_clients_is_a_synchronous_round():
    case = replace(random_schedule(1), size=6, concurrency=6, deadline=None, present=((True,) * 6,), weights="mean")
    algorithm = fm.FedHBM(lr=0.05, beta=0.6, scale="elapsed")
    buffered = train(case, algorithm)
    synchronous = train(case, algorithm, selection=fm.Uniform(m=6, weights="mean"), buffer=None)
    assert all(record.ages == [0] * 6 for record in buffered.history)
    torch.testing.assert_close(buffered.params, synchronous.params, rtol=1e-12, atol=1e-12)
    times = [[record.time for record in result.history] for result in (buffered, synchronous)]
    np.testing.assert_allclose(*times, rtol=1e-12)


class OwnUniform(fm.Uniform):
    """Drawn through `select`, as every selector of a user."""


@dataclass(frozen=True, kw_only=True)
class Wrapped(fm.Selector):
    """Passes the view on to another selector."""

    m: int
    inner: fm.Selector

    def select(self, view):
        return self.inner.select(replace(view, memo={}))


@pytest.mark.parametrize("weights", ["unbiased", "cohort", "mean"])
def test_uniform_draws_without_tensors_are_those_of_select(weights):
    """With few free clients, too; the deadline and dropouts set clients free again."""
    for availability in (None, fm.RandomAvailability(0.5)):
        changes = {"availability": availability, "buffer": fm.Buffer(size=5, concurrency=19), "rounds": 5}
        selectors = [kind(m=1, weights=weights) for kind in (fm.Uniform, OwnUniform)]
        selectors.append(Wrapped(m=1, inner=selectors[0]))
        first, *others = (outcome(digits(fm.FedAvg(lr=0.05), selection=s, **changes)) for s in selectors)
        assert [other == first for other in others] == [True, True]


@dataclass(frozen=True, kw_only=True)
class Writing(fm.Uniform):
    """Changes what it reads."""

    name: str

    def select(self, view):
        getattr(view, self.name).mul_(1)
        return super().select(view)


@pytest.mark.parametrize("name", ["p", "n", "last", "picks", "durations"])
def test_a_selector_that_changes_the_view_is_refused(name):
    with pytest.raises(ValueError, match="Writing: 'select' must not change the tensors of the view"):
        digits(fm.FedAvg(lr=0.05), selection=Writing(m=1, name=name))


def test_samples_that_are_gathered_for_all_steps_together_are_those_of_each(monkeypatch):
    together = [outcome(digits(fm.FedMoS(lr=0.05), engine=engine)) for engine in ("batched", "loop")]
    monkeypatch.setattr(batches, "_GATHERED_AT_ONCE", 0)
    assert [outcome(digits(fm.FedMoS(lr=0.05), engine=engine)) for engine in ("batched", "loop")] == together


def test_runs_of_run_many_are_those_of_run():
    runs = [{"seed": seed} for seed in range(2)]
    shared = {"selection": fm.Uniform(m=1), "rounds": 4, "local_steps": 2, "batch_size": 4, "engine": "batched"}
    shared |= {"model": fm.models.mlp(features=64), "data": federation(), "algorithm": fm.FedAvg(lr=0.05)}
    shared |= {"system": SYSTEM, "buffer": fm.Buffer(size=3, concurrency=5)}
    for given, result in zip(runs, fm.run_many(runs, **shared), strict=True):
        assert outcome(result) == outcome(fm.run(**shared | given))


def test_updates_that_are_not_finite_are_dropped_or_stop_the_run():
    pairs = [(x.float() / 16, y) for x, y in map(federation().client, range(20))]
    for i in (3, 8, 12):
        pairs[i] = (pairs[i][0] * 1e30, pairs[i][1])
    bad = {"data": fm.FederatedData.from_arrays(pairs), "update_norms": True, "rounds": 10}
    with pytest.raises(fm.DivergenceError, match="in round"):
        digits(fm.FedAvg(lr=0.05), **bad)
    dropped = digits(fm.Scaffold(lr=0.05), on_bad_update="drop", **bad)
    norms = {i: norm for r in dropped.history for i, norm in zip(r.cohort, r.update_norms, strict=True)}
    assert {3, 8, 12} & set(norms)
    assert all((norms[i] is None) == (i in (3, 8, 12)) for i in norms)


def test_time_to_a_target():
    result = digits(fm.FedAvg(lr=0.2), eval_every=1, rounds=12)
    level = result.history[7].accuracy
    first = next(record for record in result.history if record.accuracy >= level)
    assert result.time_to("accuracy", level) == first.time == first.clock
    assert result.time_to("accuracy", 2.0) is None


@dataclass(frozen=True)
class FirstTwo(fm.Availability):
    def available(self, seed, round, N):
        return torch.arange(N) < 2


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"availability": FirstTwo()}, "use a buffer of a smaller 'size' than 4"),
        ({"buffer": None, "system": fm.System(deadline=1e-6)}, "use a longer 'deadline'"),
    ],
)
def test_a_run_without_any_server_step_says_so(caplog, changes, remedy):
    result = digits(fm.FedAvg(lr=0.05), **changes)
    assert all(record.abandoned for record in result.history)
    assert f"all 6 rounds were abandoned, with too few updates that count; {remedy}" in caplog.text


def test_a_run_with_some_abandoned_rounds_is_not_mentioned(caplog):
    present = fm.RandomAvailability(0.2)
    result = digits(fm.FedAvg(lr=0.05), availability=present, rounds=12)
    assert 0 < sum(record.abandoned for record in result.history) < 12
    assert "abandoned" not in caplog.text


REFUSED = {
    "Mime": ({"algorithm": fm.Mime(lr=0.1)}, "with Mime because its extra phase"),
    "Stem": ({"algorithm": fm.Stem(lr=0.1)}, "with Stem because its extra phase"),
    "rows": ({"algorithm": SumsOfRows(lr=0.1)}, "with SumsOfRows because its server reads single updates"),
    "Full": ({"selection": fm.Full()}, "with Full because it has no 'm'"),
    "OCS": ({"selection": fm.OCS(m=2, d=4)}, "with OCS because it compares the updates"),
    "Oort": ({"selection": fm.Oort(m=2)}, "with Oort because its clients report losses"),
    "Cyclic": ({"selection": fm.Cyclic(m=2)}, "with Cyclic because it selects the cohort of a round as a whole"),
    "probes": ({"selection": Probing(m=2)}, "with Probing because it asks clients for losses"),
    "privacy": (
        {"privacy": fm.privacy.Gaussian(1.0, 1.0, 1e-5), "selection": fm.Bernoulli(rate=0.2)},
        "with 'privacy' because its ε",
    ),
    "masks": (
        {"aggregation": fm.aggregation.Secure()},
        "because masks cancel only among clients that upload in one round",
    ),
    "size": ({"buffer": fm.Buffer(21, 5)}, r"Buffer: 'size' must be ≤ the number of clients \(20\), got 21"),
    "concurrency": ({"buffer": fm.Buffer(5, 21)}, r"Buffer: 'concurrency' must be ≤ the number of clients \(20\)"),
    "deadline": ({"system": fm.System(deadline=1e-9)}, "Cannot fill the buffer because"),
    "rounds": (
        {"algorithm": Warmed(lr=0.1)},
        "with Warmed on this engine because a method for clients branches on c.t",
    ),
    "values": ({"algorithm": Adaptive(lr=0.1)}, "with Adaptive because the number of gradients"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_possible_is_refused(what):
    changes, sentence = REFUSED[what]
    with pytest.raises(ValueError, match=sentence):
        digits(**{"algorithm": fm.FedAvg(lr=0.1)} | changes)


@pytest.mark.parametrize(("field", "value"), [("size", 0), ("concurrency", 0), ("staleness", -1.0), ("size", 1.5)])
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=f"Buffer: '{field}' must be"):
        fm.Buffer(**{"size": 2, "concurrency": 3} | {field: value})


def test_which_algorithms_can_be_buffered():
    """docs/asynchronous.md lists them."""
    refused = set()
    for case in CASES:
        try:
            check_bufferable(case.make(), fm.Buffer(2, 3))
        except ValueError:
            refused.add(case.name)
    assert refused == {"Mime", "Stem"}


def test_synchronous_rounds_leave_dropouts_out():
    system = fm.System(dropout=0.4)
    result = digits(fm.FedAvg(lr=0.05), buffer=None, system=system, selection=fm.Uniform(m=8), rounds=10)
    late = [len(record.late) for record in result.history]
    assert 10 < sum(late) < 55
    waiting = digits(
        fm.FedAvg(lr=0.05), buffer=None, system=replace(system, deadline=1e3), selection=fm.Uniform(m=8), rounds=10
    )
    assert torch.equal(waiting.params, result.params)
    assert waiting.history[-1].time == 1e3 * sum(n > 0 for n in late) + sum(
        record.time - before
        for n, record, before in zip(late, result.history, times_before(result), strict=True)
        if not n
    )


def times_before(result: fm.Result) -> list[float]:
    return [0.0, *(record.time for record in result.history)][:-1]
