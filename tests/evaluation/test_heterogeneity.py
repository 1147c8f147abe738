"""`fm.analysis.heterogeneity` against closed forms, against every mini-batch there is, and against plain loops."""

import math
import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.evaluation.analysis import heterogeneity

exactly = {"rel": 1e-9, "abs": 1e-12}


# ------------------------------------------------------------------------------------- second opinions


class Regression:
    """Clients with samples (a, b); one sample's loss is (w·a + c − b)², its gradient 2 (w·a + c − b) (a, 1)."""

    def __init__(self, sizes=(4, 6, 3, 5), importance=(0.1, 0.4, 0.3, 0.2), seed=0, copies=1):
        rng = np.random.default_rng(seed)
        clients = [(rng.normal(size=(n, 2)) + rng.normal(size=2), rng.normal(size=n) + rng.normal()) for n in sizes]
        self.clients = clients * copies
        self.p = np.array(list(importance) * copies) / (sum(importance) * copies)
        self.w = rng.normal(size=3)

    def data(self) -> fm.FederatedData:
        return fm.FederatedData.from_arrays(self.clients, importance=self.p)

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double()
        nn.utils.vector_to_parameters(torch.tensor(self.w), model.parameters())
        return model

    def each(self, i: int, w: np.ndarray) -> np.ndarray:
        """(n_i, 3): every sample's gradient."""
        a, b = self.clients[i]
        a = np.hstack([a, np.ones((len(a), 1))])
        return 2 * (a @ w - b)[:, None] * a

    def gradient(self, i: int, w: np.ndarray) -> np.ndarray:
        return self.each(i, w).mean(0)

    def measure(self, **how) -> fm.analysis.Heterogeneity:
        defaults = {"loss": "mse", "dtype": torch.float64, "clients": None}
        return heterogeneity(self.model(), self.data(), **defaults | how)


def every_batch(each: np.ndarray, B: int | None) -> np.ndarray:
    """The gradients of all mini-batches of B samples without replacement, equally likely."""
    size = len(each) if B is None else min(B, len(each))
    return np.array([each[list(rows)].mean(0) for rows in combinations(range(len(each)), size)])


def squares(v: np.ndarray) -> np.ndarray:
    return (v**2).sum(-1)


def paths(gradient, who, x, K, step) -> np.ndarray:
    """(clients, K+1, D): y_i^0 … y_i^K of local work with full batches."""
    out = []
    for i in who:
        ys, state = [x], {}
        for k in range(K):
            ys.append(step(lambda y, i=i: gradient(i, y), ys[-1], x, k, state))
        out.append(ys)
    return np.array(out)


def drift_fedcm(ys: np.ndarray) -> float:
    """(1/KN) Σ_i Σ_k ‖y_i^k − x‖², k = 0 … K−1."""
    N, K = len(ys), ys.shape[1] - 1
    return squares(ys[:, :K] - ys[:, :1]).sum() / (N * K)


def drift_ghbm(ys: np.ndarray, gradient, who, lr: float) -> float:
    """(1/KN) Σ_i Σ_k ‖y_i^k − θ^k‖², k = 1 … K; θ^k = θ^{k−1} − η · mean_i g_i(θ^{k−1})."""
    N, K = len(ys), ys.shape[1] - 1
    shadow = [ys[0, 0]]
    for _ in range(K):
        shadow.append(shadow[-1] - lr * np.mean([gradient(i, shadow[-1]) for i in who], axis=0))
    return squares(ys[:, 1:] - np.array(shadow[1:])).sum() / (N * K)


def sgd(lr):
    return lambda g, y, x, k, s: y - lr * g(y)


def prox(lr, mu):
    return lambda g, y, x, k, s: y - lr * (g(y) + mu * (y - x))


def mos(lr, a, mu):
    def step(g, y, x, k, s):
        s["d"] = g(x) if k == 0 else g(y) + (1 - a) * (s["d"] - g(s["prev"]))
        s["prev"] = y
        return y - lr * s["d"] - mu * (y - x)

    return step


# ------------------------------------------------------------------------------------------ quadratics


@pytest.fixture(params=[0, 1, 2])
def problem(request):
    """Power-of-Choice's quadratics at a point of no distinction: ∇F_k(w) = h_k w − e_k."""
    quadratic = fm.datasets.quadratic(clients=7, dimensions=4, seed=request.param)
    w = np.random.default_rng(request.param).normal(size=4)
    return quadratic, w


def measure(quadratic, w, **how):
    defaults = {"loss": quadratic.objective, "dtype": torch.float64, "clients": None}
    return heterogeneity(quadratic.model(torch.tensor(w)), quadratic.data(), **defaults | how)


def test_quadratic_in_closed_form(problem):
    quadratic, w = problem
    h, e, p = (t.numpy() for t in (quadratic.h, quadratic.e, quadratic.p))
    g = h[:, None] * w - e
    mean, plain = p @ g, g.mean(0)
    found = measure(quadratic, w)
    assert found.clients == 7
    assert found.sigma2 == 0  # one sample each
    assert found.zeta2 == pytest.approx(squares(g - mean).max(), **exactly)
    assert found.sigma_g2 == pytest.approx(squares(g - plain).mean(), **exactly)
    assert found.sigma_g2 == found.G2
    assert found.gradient2 == pytest.approx(squares(mean), **exactly)
    assert found.second_moment == pytest.approx(squares(g).max(), **exactly)
    assert found.dissimilarity == pytest.approx(p @ squares(g) / squares(mean), **exactly)
    assert found.dissimilarity >= 1
    assert found.drift is None
    assert found.drift_shadow is None


@pytest.mark.parametrize("K", [1, 2, 6])
def test_quadratic_drift_in_closed_form(problem, K):
    """y^k = e/h + (1 − ηh)^k (x − e/h), and the shadow likewise with the means of h and e."""
    quadratic, w = problem
    h, e = quadratic.h.numpy()[:, None], quadratic.e.numpy()
    lr = 0.03
    found = measure(quadratic, w, lr=lr, local_steps=K)
    away, apart = 0.0, 0.0
    centre, common = e / h, e.mean(0) / h.mean()
    for k in range(K + 1):
        y = centre + (1 - lr * h) ** k * (w - centre)
        theta = common + (1 - lr * h.mean()) ** k * (w - common)
        away += squares(y - w).sum() if k < K else 0
        apart += squares(y - theta).sum() if k > 0 else 0
    assert found.drift == pytest.approx(away / (7 * K), **exactly)
    assert found.drift_shadow == pytest.approx(apart / (7 * K), **exactly)
    if K == 1:
        assert found.drift == 0
        assert found.drift_shadow == pytest.approx(lr**2 * found.sigma_g2, **exactly)


def test_client_gradients_cancel_at_the_optimum():
    quadratic = fm.datasets.quadratic(clients=5, dimensions=3)
    found = measure(quadratic, quadratic.optimum.numpy())
    assert found.gradient2 < 1e-20
    assert found.zeta2 > 1
    assert found.dissimilarity > 1e20


# ------------------------------------------------------------------------------------------ regression


@pytest.mark.parametrize("B", [1, 2, 3, 5, 100, None])
def test_every_mini_batch_there_is(B):
    problem = Regression()
    batches = [every_batch(problem.each(i, problem.w), B) for i in range(4)]
    own = np.array([problem.gradient(i, problem.w) for i in range(4)])
    found = problem.measure(batch_size=B)
    variance = [squares(b - g).mean() for b, g in zip(batches, own, strict=True)]
    assert found.sigma2 == pytest.approx(max(variance), **exactly)
    assert found.second_moment == pytest.approx(max(squares(b).mean() for b in batches), **exactly)
    assert found.zeta2 == pytest.approx(squares(own - problem.p @ own).max(), **exactly)
    assert found.sigma_g2 == found.G2 == pytest.approx(squares(own - own.mean(0)).mean(), **exactly)
    assert found.gradient2 == pytest.approx(squares(problem.p @ own), **exactly)
    assert found.dissimilarity == pytest.approx(problem.p @ squares(own) / squares(problem.p @ own), **exactly)
    if B is None or B >= 6:
        assert found.sigma2 == pytest.approx(0, abs=1e-12)


def test_a_batch_of_one_is_the_default():
    assert Regression().measure() == Regression().measure(batch_size=1)


@pytest.mark.parametrize("K", [1, 3, 5])
@pytest.mark.parametrize(
    ("algorithm", "step"),
    [
        (fm.FedAvg(lr=0.05), sgd(0.05)),
        (fm.FedProx(lr=0.05, mu=2.0), prox(0.05, 2.0)),
        (fm.FedMoS(lr=0.05, a=0.3, mu=0.1), mos(0.05, 0.3, 0.1)),
        (fm.FedCM(lr=0.05, alpha=0.2), sgd(0.01)),  # no momentum yet in the first round
        (fm.Scaffold(lr=0.05), sgd(0.05)),  # nor control variates
    ],
    ids=["FedAvg", "FedProx", "FedMoS", "FedCM", "Scaffold"],
)
def test_drift_with_full_batches(algorithm, step, K):
    problem = Regression()
    who = range(4)
    ys = paths(problem.gradient, who, problem.w, K, step)
    found = problem.measure(batch_size=None, algorithm=algorithm, local_steps=K)
    assert found.drift == pytest.approx(drift_fedcm(ys), **exactly)
    assert found.drift_shadow == pytest.approx(drift_ghbm(ys, problem.gradient, who, 0.05), **exactly)


def test_a_step_size_alone_is_fedavgs():
    problem = Regression()
    for B in (None, 2):
        one = problem.measure(batch_size=B, lr=0.05)
        assert one == problem.measure(batch_size=B, algorithm=fm.FedAvg(lr=0.05))
        assert one == problem.measure(batch_size=B, lr=0.05, local_steps=5)
    with pytest.raises(ValueError, match="heterogeneity: 'lr' must be None where an algorithm brings its own"):
        problem.measure(lr=0.05, algorithm=fm.FedAvg(lr=0.05))


@pytest.mark.parametrize(
    "algorithm",
    [fm.Mime(lr=0.05), fm.MimeLite(lr=0.05), fm.Stem(lr=0.05), fm.GHBM(lr=0.05, tau=2), fm.FedDyn(lr=0.05, alpha=0.1)],
    ids=lambda a: type(a).__name__,
)
def test_drift_of_any_algorithm(algorithm):
    found = Regression().measure(batch_size=2, algorithm=algorithm)
    assert 0 < found.drift < 10
    assert 0 < found.drift_shadow < 10


def test_drift_with_mini_batches_is_random_by_seed_only():
    problem = Regression()
    one, same, other = (problem.measure(batch_size=2, lr=0.05, seed=seed) for seed in (0, 0, 1))
    assert one == same
    assert one.drift != other.drift
    assert one.sigma2 == other.sigma2  # an expectation, not a draw


def test_a_single_client_does_not_drift_from_its_shadow():
    """Client and shadow take the same batches, so with one client there is nothing to drift apart from."""
    problem = Regression()
    for B in (1, 2, None):
        found = problem.measure(batch_size=B, lr=0.05, clients=[1])
        assert found.drift > 0
        assert found.drift_shadow == pytest.approx(0, abs=1e-20)
        assert found.zeta2 == found.sigma_g2 == 0
        assert found.dissimilarity == pytest.approx(1, **exactly)


def test_replicas_do_not_differ():
    problem = Regression(sizes=(5,), importance=(1.0,), copies=4)
    found = problem.measure(batch_size=None, lr=0.05)
    assert found.zeta2 == pytest.approx(0, abs=1e-20)
    assert found.sigma_g2 == pytest.approx(0, abs=1e-20)
    assert found.dissimilarity == pytest.approx(1, **exactly)
    assert found.drift_shadow == pytest.approx(0, abs=1e-20)
    assert found.drift > 0  # though all of them move
    assert problem.measure(batch_size=1, lr=0.05).drift_shadow > 1e-6  # each on batches of its own


def test_dissimilarity_is_one_where_every_client_is_stationary():
    """FedProx (Definition 3) sets B = 1 at a point that is stationary for every client."""
    quadratic = fm.datasets.Quadratic(
        h=torch.ones(3).double(), e=torch.ones(3, 2).double(), p=torch.full((3,), 1 / 3).double()
    )
    found = measure(quadratic, np.ones(2), lr=0.1)
    assert found.gradient2 == found.zeta2 == found.drift == 0
    assert found.dissimilarity == 1


# --------------------------------------------------------------------------------- some of the clients


@pytest.mark.parametrize("who", [[2], [1, 3], [3, 1], (0, 1, 2), np.array([0, 3]), [1, 3, 1]], ids=str)
def test_some_clients_are_a_federation_of_their_own(who):
    problem = Regression()
    part = Regression()
    chosen = sorted({int(i) for i in who})
    part.clients = [problem.clients[i] for i in chosen]
    part.p = problem.p[chosen] / problem.p[chosen].sum()
    found = problem.measure(clients=who, batch_size=2)
    assert found.clients == len(chosen)
    for name, value in vars(part.measure(batch_size=2)).items():
        assert getattr(found, name) == (value if value is None else pytest.approx(value, **exactly))
    ys = paths(part.gradient, range(len(chosen)), part.w, 4, sgd(0.05))
    found = problem.measure(clients=who, batch_size=None, lr=0.05, local_steps=4)
    assert found.drift == pytest.approx(drift_fedcm(ys), **exactly)
    assert found.drift_shadow == pytest.approx(drift_ghbm(ys, part.gradient, range(len(chosen)), 0.05), **exactly)


def test_a_number_of_clients_is_drawn():
    problem = Regression()
    pairs = {pair: problem.measure(clients=list(pair)).sigma_g2 for pair in combinations(range(4), 2)}
    seen = set()
    for seed in range(30):
        found = problem.measure(clients=2, seed=seed)
        assert found == problem.measure(clients=2, seed=seed)
        assert found.clients == 2
        (pair,) = [pair for pair, value in pairs.items() if value == found.sigma_g2]
        seen.add(pair)
    assert len(seen) == 6
    for many in (4, 5, 10**9, None):
        assert problem.measure(clients=many) == problem.measure(clients=None)


def test_numpys_integers_are_integers():
    problem = Regression()
    assert problem.measure(clients=np.int64(2)) == problem.measure(clients=2)
    assert problem.measure(batch_size=np.int64(2)) == problem.measure(batch_size=2)


@pytest.mark.parametrize("who", [0, -1, [], [4], [-1], [0.5], "all", True, 2.5, [True]], ids=repr)
def test_bad_clients_get_a_sentence(who):
    with pytest.raises(
        ValueError, match="heterogeneity: 'clients' must be a number of clients, clients from 0 to 3, or None"
    ):
        Regression().measure(clients=who)


def test_clients_of_no_importance_are_refused_or_measured():
    problem = Regression(importance=(1.0, 0.0, 0.0, 1.0))
    assert math.isfinite(problem.measure(clients=[0, 1]).zeta2)
    try:
        found = problem.measure(clients=[1, 2])
    except ValueError as error:
        assert "importance" in str(error)  # noqa: PT017
    else:
        assert all(math.isfinite(v) for v in vars(found).values() if v is not None)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"batch_size": 0}, "heterogeneity: 'batch_size' must be an integer ≥ 1 or None, got 0"),
        ({"batch_size": 1.5}, "heterogeneity: 'batch_size' must be an integer ≥ 1 or None, got 1.5"),
        ({"local_steps": 0}, "heterogeneity: 'local_steps' must be an integer ≥ 1, got 0"),
        ({"lr": 0}, "heterogeneity: 'lr' must be > 0 or None, got 0"),
        ({"lr": 1e40}, "heterogeneity: 'lr' must be ≤ "),
        ({"algorithm": 3}, "heterogeneity: 'algorithm' must be a fedmos.Algorithm or None, got 3"),
        ({"device": "gpu"}, "heterogeneity: 'device' must be a device of this machine, got 'gpu'"),
        ({"lr": float("nan")}, "heterogeneity: 'lr' must be > 0 or None, got nan"),
        ({"seed": 0.5}, "heterogeneity: 'seed' must be an integer, got 0.5"),
        ({"loss": "cross_entropy"}, "the targets are not class numbers; use loss='mse'"),
    ],
)
def test_bad_arguments_get_a_sentence(how, sentence):
    with pytest.raises(ValueError) as error:
        Regression().measure(**how)
    assert sentence in str(error.value)


# ------------------------------------------------------------------------------- models as they come


class Stubborn(nn.Module):
    """Looks at its input, which `vmap` does not let it do."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.out(x) if x.sum().item() < 1e9 else self.out(-x)


class Willing(Stubborn):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.flatten(1))


@pytest.fixture(scope="module")
def few():
    return fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2, size=(4, 9)), clients=6, seed=0)


def by_hand(model: nn.Module, data: fm.FederatedData, B: int) -> dict[str, float]:
    """With autograd, sample by sample."""
    own, spread, n = [], [], data.sizes.numpy()
    for i in range(len(data)):
        x, y = data.client(i)
        rows = []
        for j in range(len(y)):
            loss = nn.functional.cross_entropy(model(data.inputs(x[j : j + 1], torch.float64)), y[j : j + 1])
            rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).numpy())
        own.append(np.mean(rows, axis=0))
        spread.append(squares(np.array(rows) - own[-1]).mean())
    own, size = np.array(own), np.minimum(n, B)
    variance = np.array(spread) / size * (n - size) / np.maximum(n - 1, 1)
    mean = data.importance.numpy() @ own
    return {
        "sigma2": variance.max(),
        "zeta2": squares(own - mean).max(),
        "sigma_g2": squares(own - own.mean(0)).mean(),
        "second_moment": (variance + squares(own)).max(),
        "gradient2": squares(mean),
    }


def test_pictures_are_normalised_and_classes_counted(few):
    torch.manual_seed(0)
    model = Willing().double()
    found = heterogeneity(model, few, batch_size=3, clients=None, dtype=torch.float64)
    for name, value in by_hand(model, few, 3).items():
        assert getattr(found, name) == pytest.approx(value, **exactly)


def test_models_that_cannot_be_vectorised_are_measured_one_by_one(few):
    torch.manual_seed(0)
    stubborn, willing = Stubborn().double(), Willing().double()
    willing.load_state_dict(stubborn.state_dict())
    how = {"batch_size": 3, "clients": None, "dtype": torch.float64, "lr": 0.1}
    one, other = heterogeneity(stubborn, few, **how), heterogeneity(willing, few, **how)
    for name, value in vars(other).items():
        assert getattr(one, name) == pytest.approx(value, **exactly)


def test_heterogeneity_does_not_depend_on_chunks(few, monkeypatch):
    torch.manual_seed(0)
    model = Willing().double()
    whole = heterogeneity(model, few, batch_size=2, dtype=torch.float64, lr=0.1)
    monkeypatch.setattr(
        sys.modules["fedmos.evaluation.analysis.heterogeneity"], "_NUMBERS_AT_ONCE", 1500
    )  # two samples
    for name, value in vars(heterogeneity(model, few, batch_size=2, dtype=torch.float64, lr=0.1)).items():
        assert getattr(whole, name) == pytest.approx(value, **exactly)


def test_dropout_and_augmentation_are_off_but_for_drift(few):
    torch.manual_seed(0)
    plain = Willing().double()
    noisy = nn.Sequential(nn.Dropout(0.5), plain)
    changed = few.declare(augment=fm.Augment(crop=2))
    how = {"batch_size": 2, "clients": None, "dtype": torch.float64, "lr": 0.1}
    base = heterogeneity(plain, few, **how)
    for other in (heterogeneity(noisy, few, **how), heterogeneity(plain, changed, **how)):
        for name, value in vars(base).items():
            if name not in ("drift", "drift_shadow"):
                assert getattr(other, name) == pytest.approx(value, **exactly)
        assert other.drift != pytest.approx(base.drift, rel=1e-3)


def test_heterogeneity_changes_neither_model_nor_data(few):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), Willing()).double().eval()
    weights = [p.detach().clone() for p in model.parameters()]
    x, y, state = few.x.clone(), few.y.clone(), torch.get_rng_state()
    heterogeneity(model, few, batch_size=2, lr=0.1, dtype=torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))
    assert not any(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(few.x, x)
    assert torch.equal(few.y, y)
    assert torch.equal(torch.get_rng_state(), state)


def test_more_skew_is_more_heterogeneity():
    digits = fm.datasets.load("digits")
    model = fm.models.logistic(features=64)
    found = [
        heterogeneity(model, digits.partition(scheme, clients=10), clients=None, lr=0.1, batch_size=None)
        for scheme in (fm.partition.IID(), fm.partition.Dirichlet(alpha=1.0), fm.partition.Dirichlet(alpha=0))
    ]
    for name in ("zeta2", "sigma_g2", "dissimilarity", "drift_shadow"):
        values = [getattr(f, name) for f in found]
        assert values == sorted(values)
        assert values[2] > 1.5 * values[0]
