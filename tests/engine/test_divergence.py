"""Updates that are not finite, or absurd, from one client or from many: the model stays finite, and later rounds work."""

import dataclasses

import pytest
import torch

import fedmos as fm

BASES = {
    "FedAvg": fm.FedAvg(lr=0.1),
    "FedMoS": fm.FedMoS(lr=0.1),
    "Scaffold": fm.Scaffold(lr=0.1),
    "Scaffold, option 1": fm.Scaffold(lr=0.1, option=1),
    "FedHBM": fm.FedHBM(lr=0.1, beta=0.9),
    "FedAdam": fm.FedAdam(lr=0.1),
    "FedCM": fm.FedCM(lr=0.1),
    "FedDyn": fm.FedDyn(lr=0.1, alpha=0.1),
    "Mime": fm.Mime(lr=0.1, beta=0.5),
    "GHBM": fm.GHBM(lr=0.1, tau=2),
    "Stem": fm.Stem(lr=0.1),
}
ONE, MANY = (3,), (1, 3, 4, 8, 9, 15)  # one client, and 30 % of twenty
VALUES = {"NaN": float("nan"), "inf": float("inf"), "-inf": -float("inf"), "1e30": 1e30, "-3e38": -3e38, "zero": 0.0}


def corrupting(base, bad, value, until=10**9, what="uploads"):
    """The algorithm, but some clients (told by their importance) send this value, or keep it, in rounds before `until`."""

    def finish(self, y, s, c, grad):
        uploads, own = type(base).finish(self, y, s, c, grad)
        wrong = torch.isin(c.p, bad.to(c.p)) & (torch.as_tensor(c.t) < until)
        if value == 0.0:  # an update of nothing
            return {n: torch.where(wrong, 0.0, v) for n, v in uploads.items()}, own
        if what == "uploads":
            uploads = {n: torch.where(wrong, value, v) for n, v in uploads.items()}
        else:
            own = {n: torch.where(wrong, value, v) for n, v in own.items()}
        return uploads, own

    kind = dataclasses.make_dataclass(
        f"Bad{type(base).__name__}", [], bases=(type(base),), frozen=True, kw_only=True, namespace={"finish": finish}
    )
    return kind(**{f.name: getattr(base, f.name) for f in dataclasses.fields(base)})


@pytest.fixture(scope="module")
def told(digits):
    """The digits with importances that tell clients apart."""
    importance = 1 + 0.01 * torch.arange(20, dtype=torch.float64)
    return dataclasses.replace(digits, importance=importance / importance.sum())


def importances(data, clients):
    """Those numbers as clients see them: in the run's dtype."""
    return data.importance[list(clients)].float()


def all_finite(result):
    vectors = [result.params, *result.server_state.values()]
    vectors += [v for i in range(20) if int(result.last[i]) >= 0 for v in result.client_state(i).values()]
    return all(bool(v.isfinite().all()) for v in vectors)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", ["FedAvg", "FedMoS", "Scaffold", "FedHBM", "FedAdam"])
@pytest.mark.extended
def test_the_model_stays_finite(quick, told, name, value, engine):
    for clients in (ONE, MANY):
        algorithm = corrupting(BASES[name], importances(told, clients), VALUES[value])
        result = quick(
            algorithm=algorithm, data=told, selection=fm.Full(), rounds=2, engine=engine, on_bad_update="drop"
        )
        assert all_finite(result)
        if value in ("NaN", "inf", "-inf"):  # as if they had not been there: the others' updates count
            assert not any(record.abandoned for record in result.history)
            assert {int(i) for i in (result.last < 0).nonzero()} == set(clients)
            assert result.history[-1].train_loss < result.history[0].train_loss


@pytest.mark.parametrize("value", ["1e30", "-3e38"])
@pytest.mark.parametrize("name", BASES)
@pytest.mark.extended
def test_a_huge_update_does_not_poison_later_rounds(quick, told, name, value):
    """In round 1 only. Whatever the server makes of it, model and state are finite from then on, and rounds go on."""
    algorithm = corrupting(BASES[name], importances(told, MANY), VALUES[value], until=1)
    result = quick(algorithm=algorithm, data=told, selection=fm.Full(), rounds=6, on_bad_update="drop", clip=1.0)
    assert all_finite(result)
    first = result.history[0]
    if first.abandoned:  # then it is as if the round had not been, and the others bring the loss down
        assert not result.history[-1].abandoned
        assert result.history[-1].train_loss < first.train_loss


def test_a_square_that_overflows_abandons_the_round(quick, told):
    """FedAdam's v = A² would be infinite while x is not, and the model would never move again."""
    algorithm = corrupting(fm.FedAdam(lr=0.1), importances(told, ONE), 1e30, until=1)
    result = quick(algorithm=algorithm, data=told, selection=fm.Full(), rounds=3, on_bad_update="drop")
    assert [record.abandoned for record in result.history] == [True, False, False]
    assert bool(result.server_state["v"].isfinite().all())
    assert result.history[2].train_loss < result.history[0].train_loss
    with pytest.raises(fm.DivergenceError, match="The server's step in round 1 is not finite"):
        quick(algorithm=algorithm, data=told, selection=fm.Full())


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", ["Scaffold", "FedHBM", "FedDyn"])
def test_client_state_that_is_not_finite_is_not_kept(quick, told, name, engine):
    algorithm = corrupting(BASES[name], importances(told, ONE), float("nan"), until=2, what="own")
    result = quick(algorithm=algorithm, data=told, selection=fm.Full(), rounds=4, engine=engine, on_bad_update="drop")
    assert all_finite(result)
    assert int(result.last[3]) == 3  # back once it is well


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", BASES)
def test_a_round_where_all_fail_leaves_everything_unchanged(quick, told, name, engine):
    algorithm = corrupting(BASES[name], importances(told, range(20)), float("nan"))
    model = fm.models.logistic(features=64)
    result = quick(algorithm=algorithm, data=told, model=model, rounds=2, engine=engine, on_bad_update="drop")
    assert all(record.abandoned for record in result.history)
    assert torch.equal(result.params, torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert all_finite(result)
    assert int(result.last.max()) == -1


@pytest.mark.parametrize("weights", [[[0.0, 1.0, 1.0]], pytest.param([[0.0, 0.0, 0.0]], marks=pytest.mark.extended)])
@pytest.mark.parametrize("name", BASES)
def test_zero_weights(quick, told, name, weights):
    """Clients that count for nothing, alone or with a bad one among them."""
    cohorts = fm.FixedCohorts([[3, 4, 5]], weights=weights)
    for bad in ((), (3,), (4, 5)):
        algorithm = corrupting(BASES[name], importances(told, bad), float("inf"))
        result = quick(algorithm=algorithm, data=told, selection=cohorts, on_bad_update="drop")
        assert all_finite(result)


def test_stopping_names_client_and_round(quick, told):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Late(fm.FedAvg):
        def finish(self, y, s, c, grad):
            wrong = torch.isin(c.p, importances(told, MANY)) & (torch.as_tensor(c.t) == 1)
            return {"delta": torch.where(wrong, torch.nan, y - c.x)}, {}

    for engine in ("loop", "batched"):
        with pytest.raises(fm.DivergenceError, match="The update of client 1 in round 2 is not finite") as error:
            quick(algorithm=Late(lr=0.1), data=told, selection=fm.Full(), engine=engine)
        assert len(error.value.result.history) == 1
        assert error.value.result.params.isfinite().all()


@pytest.mark.parametrize(
    "selection",
    [
        fm.PowerOfChoice(m=3, d=9, loss="full"),
        fm.PowerOfChoice(m=3, d=9, loss="reported"),
        fm.ActiveFL(m=3),
        fm.Oort(m=3),
        fm.CACS(m=3, warmup=2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("value", [1e30, 3e38, float("nan")])
def test_selectors_live_with_losses_that_are_not_finite(quick, told, selection, value):
    """After a huge step losses overflow; selection goes on all the same."""
    algorithm = corrupting(fm.FedAvg(lr=0.1), importances(told, MANY), value)
    result = quick(algorithm=algorithm, data=told, selection=selection, rounds=6, on_bad_update="drop")
    assert len(result.history) == 6
    assert all_finite(result)
