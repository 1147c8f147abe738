"""Sampling variance and selection skew."""

import itertools
import re

import pytest
import torch

import fedmos as fm

P = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("selector", [fm.Uniform(m=2), fm.MD(m=3), fm.ACS(m=3), fm.Full()])
@pytest.mark.extended
def test_closed_forms_agree_with_draws(selector):
    exact = fm.analysis.sampling_variance(selector, P)
    drawn = fm.analysis.draw_weights(selector, P, None, None, draws=4000)
    assert exact.exact
    assert torch.allclose(exact.mean, P)
    spread = 4 * (exact.variance / 4000).sqrt() + 1e-12
    assert bool(((drawn.mean(0) - P).abs() <= spread).all())
    assert torch.allclose(drawn.var(0), exact.variance, rtol=0.15, atol=1e-12)


@pytest.mark.parametrize(
    ("selector", "p", "sentence"),
    [
        (fm.Uniform(m=5), P, "Uniform: 'm' must be ≤ the number of clients (4), got 5"),
        (fm.Uniform(m=1), [0.5, 0.6], "sampling_variance: 'p' must have the sum one, got 1.1"),
        (fm.MD(m=1), [1.5, -0.5], "sampling_variance: 'p' must hold a number ≥ 0 for each client"),
    ],
)
def test_impossible_samplings_are_refused(selector, p, sentence):
    with pytest.raises(ValueError) as caught:
        fm.analysis.sampling_variance(selector, p)
    assert sentence in str(caught.value)


def test_importances_in_single_precision_are_accepted():
    assert fm.analysis.draw_weights(fm.MD(m=2), P.float(), None, None, draws=3).sum(1).tolist() == [1, 1, 1]


@pytest.mark.extended
def test_without_a_closed_form_weights_are_drawn():
    sampling = fm.analysis.sampling_variance(fm.PowerOfChoice(m=1, d=4), P, losses=torch.tensor([1.0, 4.0, 2.0, 3.0]))
    assert not sampling.exact
    assert sampling.mean.tolist() == [0, 1, 0, 0]
    assert sampling.total == 0


def test_skew_is_one_for_unbiased_selection_and_enumerable_for_pow_d():
    """ρ(S(π, w), w′) of pow-d with m = 1, d = 2, by hand: candidates are drawn one after the other by p."""
    losses, elsewhere = torch.tensor([1.0, 4.0, 2.0, 3.0]).double(), torch.tensor([5.0, 1.0, 1.0, 2.0]).double()
    assert fm.analysis.selection_skew(fm.MD(m=2), P, losses) == pytest.approx(1)
    chosen = torch.zeros(4, dtype=torch.float64)
    for a, b in itertools.permutations(range(4), 2):
        chosen[max(a, b, key=lambda k: losses[k])] += P[a] * P[b] / (1 - P[a])
    best = 0.5
    expected = float((chosen @ (elsewhere - best)) / (P @ (elsewhere - best)))
    measured = fm.analysis.selection_skew(fm.PowerOfChoice(m=1, d=2), P, losses, elsewhere, best, draws=4000)
    assert measured == pytest.approx(expected, abs=0.05)


def test_power_of_choice_skews_more_the_larger_d():
    problem = fm.datasets.quadratic(clients=20, dimensions=2)
    bounds = [
        fm.analysis.skew_bounds(selector, problem, points=3, draws=200)
        for selector in (fm.MD(m=2), fm.PowerOfChoice(m=2, d=4), fm.PowerOfChoice(m=2, d=20))
    ]
    assert bounds[0].rho == pytest.approx(1)
    assert bounds[0].bias == pytest.approx(1)
    assert bounds[1].rho > 1
    assert bounds[0].bias < bounds[1].bias < bounds[2].bias


@pytest.mark.parametrize(
    ("changes", "fault"), [({"points": 0}, "an integer ≥ 1, got 0"), ({"radius": 0.0}, "> 0, got 0.0")]
)
def test_a_grid_without_points_is_refused(changes, fault):
    with pytest.raises(ValueError, match=f"^skew_bounds: '{next(iter(changes))}' must be {fault}"):
        fm.analysis.skew_bounds(fm.Full(), fm.datasets.quadratic(4, 2), **changes)


def test_clustered_by_size_has_a_closed_form():
    """It is ACS under another name."""
    mine, same = (fm.analysis.sampling_variance(s(m=2), P) for s in (fm.Clustered, fm.ACS))
    assert mine.exact
    torch.testing.assert_close(mine.variance, same.variance)


def test_a_choice_after_training_has_no_draws():
    with pytest.raises(ValueError, match=r"^Cannot draw weights with OCS because it chooses after training; use a run"):
        fm.analysis.sampling_variance(fm.OCS(m=2), P)


class Largest(fm.MD):
    """Draws other clients than its base class."""

    def select(self, view):
        return view.n.argsort(descending=True)[: self.m].tolist(), [0.5] * self.m


def test_a_subclass_does_not_have_the_closed_form_of_its_base():
    found = fm.analysis.sampling_variance(Largest(m=2), P, n=torch.tensor([1, 4, 3, 2]), draws=3)
    assert not found.exact
    assert found.mean.tolist() == [0, 0.5, 0.5, 0]


def test_losses_and_importances_can_be_lists_and_float32():
    selector, p, losses = fm.PowerOfChoice(m=1, d=4), [0.25] * 4, [1.0, 2.0, 3.0, 4.0]
    assert fm.analysis.selection_skew(selector, p, losses, draws=2) == 1.6
    assert fm.analysis.selection_skew(selector, torch.tensor(p), torch.tensor(losses), draws=2) == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda a: a.sampling_variance("Uniform", P),
            "sampling_variance: 'selector' must be a fedmos.Selector, got 'Un",
        ),
        (
            lambda a: a.sampling_variance(fm.MD(m=2), "x"),
            "sampling_variance: 'p' must hold a number ≥ 0 for each client",
        ),
        (
            lambda a: a.sampling_variance(fm.MD(m=2), P, n=[1]),
            "sampling_variance: 'n' must hold a number for each of 4",
        ),
        (
            lambda a: a.draw_weights(fm.MD(m=2), P, None, 3.0, 5),
            "draw_weights: 'losses' must hold a number for each of 4",
        ),
        (
            lambda a: a.draw_weights(fm.MD(m=2), P, None, None, 5, None),
            "draw_weights: 'seed' must be an integer of 64 b",
        ),
        (
            lambda a: a.selection_skew(fm.MD(m=2), P, None),
            "selection_skew: 'losses' must hold a number for each of 4 cl",
        ),
        (
            lambda a: a.selection_skew(fm.MD(m=2), P, P, torch.ones(2, 3)),
            "selection_skew: 'losses_at' must hold a number for each of 4 clients, or rows of them, got",
        ),
        (
            lambda a: a.selection_skew(fm.MD(m=2), P, P, best="x"),
            "selection_skew: 'best' must hold a number for each of 4 clients, or one number, got 'x'",
        ),
        (lambda a: a.skew_bounds(fm.MD(m=2), 3), "skew_bounds: 'problem' must be a problem of quadratic(…), got 3"),
    ],
)
def test_wrong_types_and_shapes_get_a_sentence(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call(fm.analysis)


@pytest.mark.parametrize(
    ("selector", "p", "draws", "message"),
    [
        (fm.MD(m=2), 2 * P, 10, "sampling_variance: 'p' must have the sum one, got 2; use p / p.sum()"),
        (fm.MD(m=2), P - 0.2, 10, "sampling_variance: 'p' must hold a number ≥ 0 for each client, got [0.2, "),
        (fm.Uniform(m=5), P, 10, "Uniform: 'm' must be ≤ the number of clients (4), got 5"),
        (fm.Uniform(m=2, weights="cohort"), P, 1, "sampling_variance: 'draws' must be an integer ≥ 2, got 1"),
    ],
)
def test_what_has_no_variance_is_refused(selector, p, draws, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        fm.analysis.sampling_variance(selector, p, draws=draws)
