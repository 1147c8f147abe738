"""Models on the test samples of single clients, against one client after another."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm
from fedmos.engine.execution_plan import ExecutionPlan
from fedmos.evaluation.client_scores import ClientEvaluator
from fedmos.run.build import prepare_task
from fedmos.run.spec import RunSpec

LOOP = ExecutionPlan(engine="loop", chunk=1)
BATCHED = ExecutionPlan(engine="batched", chunk=4, max_parallel_clients=4)


def make_task(data, model, **more):
    options = {"algorithm": fm.FedAvg(lr=0.1), "selection": fm.Full(), "rounds": 1, "local_steps": 1, "batch_size": 4}
    return prepare_task(RunSpec(model=model, data=data, device="cpu", **options | more), None)


def image_data(n=7, seed=0):
    rng = np.random.default_rng(seed)
    clients = [(rng.random((6, 1, 8, 8)).astype("float32"), rng.integers(0, 10, 6)) for _ in range(n)]
    sizes = [0, 1, 2, 3, 9, 17, 1100][:n]
    tests = [(rng.random((k, 1, 8, 8)).astype("float32"), rng.integers(0, 10, k)) for k in sizes]
    return fm.FederatedData.from_arrays(clients, tests=tests)


def text_data():
    rng = np.random.default_rng(1)
    clients = [(rng.integers(0, 30, (5, 12)), rng.integers(0, 30, 5)) for _ in range(5)]
    tests = [(rng.integers(0, 30, (k, 12)), rng.integers(0, 30, k)) for k in (4, 0, 1, 6, 6)]
    return fm.FederatedData.from_arrays(clients, tests=tests)


def client_by_client(task, models, loss=F.cross_entropy):
    """The loss and accuracy of each client's model, as a user would compute them."""
    found = []
    with task.model.evaluation_mode(), torch.no_grad():
        for (x, y), model in zip(task.data.tests, models, strict=True):
            outputs = task.model(model, task.inputs(x)) if len(y) else torch.zeros(0, 2)
            found.append((loss(outputs, y), (outputs.argmax(1) == y).double().mean()) if len(y) else (np.nan, np.nan))
    return torch.tensor(found, dtype=torch.float64).T


def models_of(task, n):
    x = task.model.initial()
    return x + 0.1 * torch.randn(n, len(x), generator=torch.Generator().manual_seed(0), dtype=x.dtype)


def bn_model():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


CASES = {
    "convolutions": (image_data, fm.models.cnn_digits, {}),
    "recurrence": (text_data, lambda: fm.models.char_lstm(vocabulary=30, embedding=4, hidden=8), {}),
    "batch norm": (image_data, bn_model, {"batchnorm": "local"}),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_one_client_after_another(case):
    data, model, more = CASES[case]
    task = make_task(data(), model(), dtype=torch.float64, **more)
    n = len(task.data)
    models = models_of(task, n)
    if task.model.has_client_statistics:
        models = torch.cat([models, task.model.statistics.initial().expand(n, -1) * 1.5], dim=1)
    every = torch.arange(n)
    shared = ClientEvaluator(task, plan=BATCHED)(models[0], every)
    expected = client_by_client(task, models[:1].expand(n, -1))
    assert torch.allclose(torch.stack(list(shared.values())), expected, atol=1e-10, equal_nan=True)
    expected = client_by_client(task, models)
    for plan in (LOOP, BATCHED):
        found = ClientEvaluator(task, plan=plan)(lambda ids: models[ids], every)
        assert torch.allclose(torch.stack(list(found.values())), expected, atol=1e-10, equal_nan=True)
        some = torch.tensor([4, 0, 3])
        part = ClientEvaluator(task, plan=plan)(lambda ids: models[ids], some)
        assert torch.equal(part["accuracy"].nan_to_num(), found["accuracy"][some].nan_to_num())


def test_bits_do_not_depend_on_other_clients():
    task = make_task(image_data(), fm.models.cnn_digits())
    models = models_of(task, 7)
    evaluator = ClientEvaluator(task, plan=BATCHED)
    every = evaluator(lambda ids: models[ids], torch.arange(7))
    for i in range(1, 7):
        assert torch.equal(evaluator(lambda ids: models[ids], torch.tensor([i]))["loss"][0], every["loss"][i])


def test_metrics_and_losses_of_whole_batches():
    rng = np.random.default_rng(0)
    pairs = [(rng.random((8, 3)).astype("float32"), rng.random((8, 1)).astype("float32")) for _ in range(4)]
    data = fm.FederatedData.from_arrays(pairs, tests=[None, *pairs[1:]])
    model = nn.Linear(3, 1)
    task = make_task(data, model, loss="mse")
    x = task.model.initial()
    scores = ClientEvaluator(task, {"rmse": fm.metrics.RMSE()}, BATCHED)(x, torch.arange(4))
    assert list(scores) == ["loss", "rmse"]
    assert torch.allclose(scores["rmse"] ** 2, scores["loss"], atol=1e-6, equal_nan=True)
    batch = make_task(data, model, loss=fm.losses.Batch(lambda o, t: ((o - t) ** 2).mean().sqrt()))
    assert torch.allclose(ClientEvaluator(batch)(x, torch.arange(4))["loss"], scores["rmse"], atol=1e-6, equal_nan=True)


def test_ignored_targets_do_not_count():
    x = torch.eye(4)
    data = fm.FederatedData.from_arrays(
        [(x, torch.arange(4))] * 2, tests=[(x, torch.tensor([0, -100, 2, -100])), (x, torch.full((4,), -100))]
    )
    task = make_task(data, nn.Linear(4, 4))
    weights = torch.cat([torch.eye(4).flatten(), torch.zeros(4)])
    found = ClientEvaluator(task)(weights, torch.arange(2))
    assert found["accuracy"][0] == 1
    assert found["loss"][0] == pytest.approx(float(F.cross_entropy(x[:2], torch.tensor([0, 1]))))
    assert found["accuracy"][1].isnan()
    assert found["loss"][1].isnan()


def test_a_loss_that_is_no_number_is_not_left_out():
    task = make_task(image_data(), fm.models.cnn_digits())
    models = models_of(task, 7)
    models[3] = torch.nan
    for plan in (LOOP, BATCHED):
        losses = ClientEvaluator(task, plan=plan)(lambda ids: models[ids], torch.arange(7))["loss"]
        assert losses[3] == torch.inf
        assert losses.isnan().tolist() == [True] + [False] * 6  # client 0 has no test samples
