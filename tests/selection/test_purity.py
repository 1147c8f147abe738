"""Selection is a function of seed, round and view; its state resumes; its declaration is checked."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.selection import P6, drawn, tensor, view_of

EVERY = {
    "ACS": fm.ACS(m=3),
    "ActiveFL": fm.ActiveFL(m=3, alpha1=0.3),
    "Bernoulli": fm.Bernoulli(rate=0.3),
    "CACS": fm.CACS(m=3, warmup=1),
    "Clustered": fm.Clustered(m=3),
    "Clustered, similarity": fm.Clustered(m=3, by="similarity"),
    "Cyclic": fm.Cyclic(m=3),
    "DELTA": fm.DELTA(m=3),
    "FedCor": fm.FedCor(m=3, warmup=1, steps=5),
    "FixedCohorts": fm.FixedCohorts([[0, 1], [2]]),
    "Full": fm.Full(),
    "MD": fm.MD(m=3),
    "OCS": fm.OCS(m=3),
    "OCS, approximate": fm.OCS(m=3, d=5, method="approximate"),
    "Oort": fm.Oort(m=3),
    "PowerOfChoice": fm.PowerOfChoice(m=3, d=5),
    "PowerOfChoice, batch": fm.PowerOfChoice(m=3, d=5, loss="batch"),
    "PowerOfChoice, reported": fm.PowerOfChoice(m=3, d=5, loss="reported"),
    "UCB": fm.UCB(m=3),
    "Uniform": fm.Uniform(m=3),
}


def test_every_selector_is_tested():
    assert {name.split(",")[0] for name in EVERY} == set(fm.selectors())


def rich_view(seed: int, t: int) -> fm.View:
    rng = np.random.default_rng(0)
    losses = np.where(rng.random(12) < 0.3, np.nan, rng.random(12))
    gradients = torch.from_numpy(rng.normal(size=(12, 4)))
    last = torch.from_numpy(np.where(np.isnan(losses), -1, 0))
    view = view_of(
        rng.random(12), rng.integers(1, 30, 12).tolist(), losses, last=last, durations=tensor(rng.random(12))
    )
    view.seed, view.round = seed, t
    view.reported = {**view.reported, "gradient_noise": tensor(losses)}
    view.updates = {i: gradients[i] for i in range(12) if last[i] == 0}
    view.ask_losses = lambda ids, batch: gradients[ids, 0]
    view.ask_gradients = lambda ids: gradients[ids]
    return view


def copied(view: fm.View) -> dict:
    values = {f.name: getattr(view, f.name) for f in fields(view)}
    values |= {f"reported.{name}": v for name, v in view.reported.items()}
    return {name: v.clone() for name, v in values.items() if isinstance(v, torch.Tensor)}


@pytest.mark.parametrize("name", EVERY)
def test_selection_is_a_pure_function(name):
    """An equal view gives the same clients and weights, used or fresh, and is left as it was."""
    selector = EVERY[name]
    for t in (1, 2, 5):
        view = rich_view(seed=1, t=t)
        before = copied(view)
        first = [v.tolist() for v in selector.select(view)]
        assert [v.tolist() for v in selector.select(view)] == first
        assert [v.tolist() for v in selector.select(rich_view(seed=1, t=t))] == first
        assert all(torch.equal(v.nan_to_num(-1.0), before[k].nan_to_num(-1.0)) for k, v in copied(view).items())


@pytest.mark.parametrize("name", EVERY)
def test_selection_follows_seed_and_round(name):
    """Both change the draws of every selector that draws."""
    selector = EVERY[name]

    def draws(seed: int, rounds: Sequence[int]) -> list:
        return [sorted(selector.select(rich_view(seed, t))[0].tolist()) for t in rounds]

    rounds = range(1, 7)
    assert (draws(1, rounds) != draws(2, rounds)) == (name not in ("Full", "FixedCohorts", "OCS"))
    assert (draws(1, rounds) != draws(1, range(2, 8))) == (name not in ("Full", "OCS"))  # OCS draws in `thin`


AHEAD = [fm.MD, fm.ACS, fm.Uniform, *(lambda m, w=w: fm.Uniform(m=m, weights=w) for w in ("cohort", "mean"))]


@pytest.mark.parametrize("make", AHEAD)
@pytest.mark.parametrize(("N", "m"), [(12, 1), (12, 5), (12, 12), (700, 30), (700, 300)])
def test_many_rounds_drawn_at_once_are_those_drawn_one_by_one(make, N, m):
    view = view_of((np.random.default_rng(N).random(N) + 0.01).tolist())
    ids, weights = make(m=m).select_ahead(view, range(3, 40))
    one_by_one = list(drawn(make(m=m), view, rounds=37, start=3))
    assert list(zip(ids.tolist(), weights.tolist(), strict=True)) == one_by_one


@pytest.mark.parametrize("selection", [fm.Uniform(m=3), fm.MD(m=5), fm.ACS(m=5)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("seed", [*(pytest.param(seed, marks=pytest.mark.extended) for seed in (0, 5)), 2**60 + 1])
def test_a_run_s_cohorts_are_the_selector_s(quick, tmp_path, selection, seed):
    """Over more rounds than are drawn at once, whole or resumed; repeats are summed."""
    whole = quick(selection=selection, rounds=40, seed=seed, eval_every=40)
    for rounds in (7, 23, 40):
        parts = quick(selection=selection, rounds=rounds, seed=seed, eval_every=40, out=tmp_path / "run", resume=True)
    assert [(r.cohort, r.weights) for r in parts.history] == [(r.cohort, r.weights) for r in whole.history]
    assert digest(parts) == digest(whole)
    picks = Counter(i for r in whole.history for i in r.cohort)
    view = view_of([1.0] * len(whole.selection["picks"]))
    view.seed = seed
    by_hand = [sorted(set(ids)) for ids, _ in drawn(selection, view, rounds=40)]
    if isinstance(selection, fm.Uniform):  # the others follow the importances, which the view does not know
        assert [r.cohort for r in whole.history] == by_hand
    assert [picks[i] for i in range(view.N)] == whole.selection["picks"].tolist()


class OddOnly(fm.Uniform):
    """A selector that inherits how to draw ahead, but selects otherwise."""

    def select(self, view: fm.View) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(1, view.N, 2), torch.ones(view.N // 2, dtype=torch.float64)


def test_an_overridden_selection_is_not_prefetched(quick):
    assert all(i % 2 for r in quick(selection=OddOnly(m=3), rounds=5).history for i in r.cohort)


def test_a_selection_set_on_the_object_is_used(quick):
    selector = fm.Uniform(m=3)
    object.__setattr__(selector, "select", lambda view: ([view.round % 2], [1.0]))
    assert [r.cohort for r in quick(selection=selector, rounds=5).history] == [[0], [1], [0], [1], [0]]


def digest(result: fm.Result) -> str:
    return hashlib.sha256(result.params.numpy().tobytes()).hexdigest()


LASTING = {
    "rpow-d": (fm.PowerOfChoice(m=3, d=12, loss="reported"), {}),
    "ActiveFL": (fm.ActiveFL(m=4, alpha1=0.2, alpha2=1.0), {}),
    "Oort": (fm.Oort(m=4, exploration=0.3, blacklist=2), {"system": fm.System(speed=fm.LogNormal(median=100))}),
    "CACS": (fm.CACS(m=4, warmup=2), {}),
    "Clustered": (fm.Clustered(m=4, by="similarity"), {}),
    "DELTA": (fm.DELTA(m=4), {"availability": fm.RandomAvailability(0.6)}),
    "FedCor": (fm.FedCor(m=4, warmup=2, interval=3, steps=5), {"availability": fm.RandomAvailability(0.6)}),
    "OCS": (fm.OCS(m=3, d=8), {"system": fm.System(speed=fm.LogNormal(median=100))}),
    "UCB": (fm.UCB(m=4), {"availability": fm.RandomAvailability(0.6)}),
    "CACS, some away": (fm.CACS(m=4, warmup=2), {"availability": fm.RandomAvailability(0.6)}),
}


@pytest.mark.parametrize("name", LASTING)
@pytest.mark.extended
def test_a_resumed_run_selects_as_if_never_stopped(quick, tmp_path, name):
    """Stopped after rounds 1, 2 and 5, saved and resumed each time: the same cohorts, the same bits."""
    selection, more = LASTING[name]
    whole = quick(selection=selection, rounds=8, **more)
    for rounds in (1, 2, 5, 8):
        parts = quick(selection=selection, rounds=rounds, out=tmp_path / "run", resume=True, **more)
    assert [(r.cohort, r.weights, r.clock) for r in parts.history] == [
        (r.cohort, r.weights, r.clock) for r in whole.history
    ]
    assert digest(parts) == digest(whole)
    assert parts.selection.keys() == whole.selection.keys()
    for key, value in whole.selection.items():
        assert torch.equal(parts.selection[key].nan_to_num(-1.0), value.nan_to_num(-1.0))
    assert name.startswith("CACS") == ("state.cluster" in whole.selection)


@dataclass(frozen=True)
class Diary(fm.Selector):
    """A user's selector: goes on from where it last was, by as many clients as it has made steps."""

    declared: tuple[str, ...] = ("place", "steps")
    in_place: bool = False

    @property
    def state(self):
        return self.declared

    def select(self, view):
        view.state.setdefault("place", torch.tensor(0))
        view.state.setdefault("steps", torch.tensor(0))
        if self.in_place:
            view.state["steps"] += 1
            view.state["place"] += view.state["steps"]
        else:
            view.state["steps"] = view.state["steps"] + 1
            view.state["place"] = view.state["place"] + view.state["steps"]
        return view.state["place"].view(1) % view.N, torch.ones(1)


def test_a_user_s_selector_state_is_checkpointed(quick, tmp_path):
    expected = [[sum(range(1, t + 2)) % 20] for t in range(6)]
    assert [r.cohort for r in quick(selection=Diary(), rounds=6).history] == expected
    quick(selection=Diary(), rounds=2, out=tmp_path / "run")
    resumed = quick(selection=Diary(), rounds=6, out=tmp_path / "run", resume=True)
    assert [r.cohort for r in resumed.history] == expected
    assert int(resumed.selection["state.place"]) == 21


def test_an_interrupted_round_leaves_the_selector_s_state_alone(quick, tmp_path):
    """Also where a selector changes it in place: the round is played again as if for the first time."""
    rounds = []

    class Impatient(torch.nn.Linear):
        def forward(self, x):
            if torch.is_grad_enabled() and len(rounds) == 2:  # in the third round
                rounds.append(3)
                raise KeyboardInterrupt
            return super().forward(x.flatten(1))

    model, diary = Impatient(64, 10), Diary(in_place=True)
    how = {"model": model, "selection": diary, "rounds": 6, "engine": "loop", "out": tmp_path / "run"}
    stopped = quick(**how, callbacks=[lambda record: rounds.append(record.round)])
    assert len(stopped.history) == 2
    resumed = quick(**how, resume=True)
    assert [r.cohort for r in resumed.history] == [[sum(range(1, t + 2)) % 20] for t in range(6)]


@dataclass(frozen=True)
class Asking(fm.Selector):
    reports = ("loss", "mood")

    def select(self, view):
        return torch.tensor([0]), torch.ones(1)


@dataclass(frozen=True)
class Nobody(fm.Selector):
    def select(self, view):
        return torch.empty(0, dtype=torch.int64), torch.empty(0)


@pytest.mark.parametrize(
    ("selector", "sentence"),
    [
        (Diary(declared=("steps",)), "Diary: 'state' must name place"),
        (
            Asking(),
            "Asking: 'reports' must be of loss, start_loss, start_squared_loss, update_norm, gradient_noise, got 'mood'",
        ),
        (Nobody(), "Nobody: 'select' must return at least one client, got none"),
    ],
    ids=["undeclared state", "unknown report", "empty cohort"],
)
def test_a_selector_is_held_to_its_declaration(quick, selector, sentence):
    with pytest.raises(ValueError) as error:
        quick(selection=selector)
    assert str(error.value) == sentence


IDS = {
    "list": [7, 2, 7],
    "array": np.array([7, 2, 7]),
    "int32": np.array([7, 2, 7], dtype=np.int32),
    "uint8": np.array([7, 2, 7], dtype=np.uint8),
    "uint64": np.array([7, 2, 7], dtype=np.uint64),
    "tensor of int16": torch.tensor([7, 2, 7], dtype=torch.int16),
    "backwards": np.array([7, 2, 7])[::-1],
}


@pytest.mark.parametrize("away", [None, fm.Alternating(groups=1, drop=0)], ids=["everyone", "those available"])
@pytest.mark.parametrize("kind", IDS)
def test_client_numbers_of_any_kind(quick, kind, away):
    """The same cohort, and the same answers to questions."""

    class Taking(fm.Selector):
        def __init__(self, ids):
            self.ids, self.answers = ids, []

        def select(self, view):
            self.answers += [view.probe(self.ids, batch=True), view.gradients(self.ids)[0]]
            return self.ids, [0.5, 0.2, 0.3]

    one, other = Taking(torch.tensor([7, 2, 7])), Taking(IDS[kind])
    first, second = (quick(selection=s, availability=away, engine="loop") for s in (one, other))
    assert second.history[0].cohort == [2, 7]
    assert second.history[0].weights == pytest.approx([0.2, 0.8])
    assert torch.allclose(first.params, second.params, rtol=0, atol=1e-6)
    for a, b in zip(one.answers, other.answers, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("what", ["p", "n", "last", "picks", "durations"])
def test_a_selector_that_writes_into_its_view_is_refused(quick, digits, what):
    class Writing(fm.Selector):
        def select(self, view):
            getattr(view, what)[0] = 3
            return [0], [1.0]

    own = replace(digits, importance=digits.importance.clone())  # it is refused afterwards: the others' stays whole
    with pytest.raises(ValueError, match="Writing: 'select' must not change the tensors of the view; use a clone"):
        quick(selection=Writing(), data=own)


def test_a_selector_s_state_is_of_tensors(quick):
    class Counting(fm.Selector):
        state = ("count",)

        def select(self, view):
            view.state["count"] = 3
            return [0], [1.0]

    with pytest.raises(ValueError, match="Counting: 'state' must hold tensors, got 3 for 'count'"):
        quick(selection=Counting())


def test_empty_cohorts_and_empty_probes_are_accepted(quick):
    class Waiting(fm.Selector):
        def select(self, view):
            assert view.probe([]).shape == (0,)
            assert view.gradients([]).shape == (0, 650)
            return [], []

    result = quick(selection=Waiting(), availability=fm.Alternating(groups=1, drop=0))
    assert [(r.cohort, r.bytes_up) for r in result.history] == [([], 0)] * 3


def test_probes_need_a_run():
    with pytest.raises(ValueError, match=r"^Cannot ask clients because this view belongs to no run; use"):
        fm.PowerOfChoice(m=1, d=2).select(view_of(P6))


def test_the_earlier_name_of_prefetchable_still_works():
    class Earlier(fm.Selector):
        foreseeable = True

    class Current(fm.Selector):
        prefetchable = True

    assert vars(Earlier)["prefetchable"] is True
    assert vars(Current)["foreseeable"] is True
    assert fm.ACS.foreseeable
    assert not fm.Selector.foreseeable
    assert not fm.Oort.prefetchable
