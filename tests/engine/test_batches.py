"""The samples of each step of a client, and the gradients computed on them."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.engine import batched, loop
from fedmos.engine.batches import Batches, Chunk
from fedmos.engine.task import Task
from helpers.engines import SIZES, task

EVERYONE = torch.arange(len(SIZES))


def batches_of(how: Task, t: int) -> Batches:
    return Batches(how, Chunk.of(how, EVERYONE), t)


def used(batch, i: int) -> list[int]:
    return batch.positions[i, : int(batch.size[i])].tolist()


def test_steps_draw_without_replacement_and_independently():
    batches = batches_of(task(local_steps=6, batch_size=4), t=3)
    assert batches.K.tolist() == [6] * 4
    seen = set()
    for k in range(6):
        for i, n in enumerate(SIZES):
            chosen = used(batches.step(k), i)
            assert len(chosen) == len(set(chosen)) == min(4, n)
            assert all(0 <= j < n for j in chosen)
        seen.add(tuple(used(batches.step(k), 1)))
    assert len(seen) == 6


def test_steps_draw_uniformly():
    counts = np.zeros(5)
    rounds = 3000
    how = task(local_steps=1, batch_size=2)
    for t in range(rounds):
        counts[used(Batches(how, Chunk.of(how, torch.tensor([0])), t).step(0), 0)] += 1
    z = (counts - rounds * 0.4) / np.sqrt(rounds * 0.4 * 0.6)
    assert np.abs(z).max() < 4


def test_epochs_visit_every_sample_once_and_keep_the_short_batch():
    batches = batches_of(task(local_epochs=2, batch_size=4), t=0)
    assert batches.K.tolist() == [4, 6, 2, 4]
    for i, n in enumerate(SIZES):
        steps = [used(batches.step(k), i) for k in range(int(batches.K[i]))]
        half = len(steps) // 2
        first, second = (list(chain.from_iterable(part)) for part in (steps[:half], steps[half:]))
        assert sorted(first) == sorted(second) == list(range(n))
        assert n < 3 or first != second
        assert all(len(step) == 4 for step in steps[: half - 1])


def test_whole_batches_keep_the_stored_order():
    batches = batches_of(task(local_steps=2), t=0)
    assert [used(batches.step(1), i) for i in range(4)] == [list(range(n)) for n in SIZES]
    assert batches_of(task(local_epochs=3), t=0).K.tolist() == [3] * 4


@pytest.mark.parametrize("how", [{"local_steps": 3}, {"local_epochs": 2}])
def test_batches_do_not_depend_on_other_clients(how):
    how = task(batch_size=3, **how)
    together = Batches(how, Chunk.of(how, EVERYONE), t=5)
    for i in range(4):
        alone = Batches(how, Chunk.of(how, torch.tensor([i])), t=5)
        for k in range(int(alone.K[0])):
            assert used(alone.step(k), 0) == used(together.step(k), i)
        assert used(alone.first(2), 0) == used(together.first(2), i)


def test_the_first_batch_has_a_stream_of_its_own():
    batches = batches_of(task(local_steps=1, batch_size=4), t=0)
    assert used(batches.first(4), 1) != used(batches.step(0), 1)


@pytest.mark.parametrize("engine", [loop.Loop, batched.Batched])
def test_gradients_in_pieces_are_gradients(engine, monkeypatch):
    """Cutting a client's data to bound memory changes nothing but rounding, dropout included."""
    how = task(nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 3)), local_steps=1)
    ids = torch.tensor([1]) if engine is loop.Loop else EVERYONE
    y = how.model.initial()
    whole = engine(how, Chunk.of(how, ids), 0).full(y)
    module = loop if engine is loop.Loop else batched
    monkeypatch.setattr(module, "_SAMPLES_AT_ONCE", 5)
    pieces = engine(how, Chunk.of(how, ids), 0).full(y)
    assert not torch.equal(whole, torch.zeros_like(whole))
    assert torch.allclose(whole, pieces, rtol=0, atol=1e-14)


@pytest.mark.parametrize("engine", [loop.Loop, batched.Batched])
def test_gradients_over_all_data_keep_only_so_much_at_once(engine, monkeypatch):
    """Pieces are as large as memory should hold, of the vectorised program whole batches; a step's batch stays whole."""

    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 3))

    def take() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        how = task(model, local_steps=1, batch_size=3)
        assert how.sample_bytes >= 8 * (1 + 8 + 3)  # inputs of both layers, scores
        ids = torch.tensor([SIZES.index(max(SIZES))]) if engine is loop.Loop else EVERYONE
        grad, widths = engine(how, Chunk.of(how, ids), 0), []
        parts = grad.parts
        monkeypatch.setattr(grad, "parts", lambda batch, width: (widths.append(width), parts(batch, width))[1])
        y = how.model.initial()
        return grad.full(y), grad(y), widths

    full, step, (wide, _) = take()
    assert wide >= max(SIZES)
    company = 1 if engine is loop.Loop else len(SIZES)
    monkeypatch.setattr("fedmos.engine.task._KEPT_AT_ONCE", 5 * company * task(model, local_steps=1).sample_bytes)
    in_pieces, again, (narrow, of_step) = take()
    assert narrow == (5 if engine is loop.Loop else 3)
    assert of_step >= 3
    assert torch.equal(again, step)
    assert torch.allclose(in_pieces, full, rtol=0, atol=1e-14)


def test_the_reported_loss_is_the_mean_of_first_losses():
    """With FedMoS the full gradient before the first step counts for step 0; later steps count their first gradient."""
    how = task(local_epochs=1, batch_size=4)
    for engine, ids in ((loop.Loop, torch.tensor([1])), (batched.Batched, EVERYONE)):
        grad = engine(how, Chunk.of(how, ids), 0)
        y = grad.start(how.model.initial())
        expected = [grad.loss_and_gradient(y, grad.batches.all())[0]]
        grad.full(y)
        for k in range(1, 3):
            grad.k = k
            expected.append(grad.loss_and_gradient(y + k, grad.batches.step(k))[0])
            grad(y + k), grad(y)
        grad.k = None
        grad.full(y)
        row = int((ids == 1).nonzero())
        assert float(grad.reported()[row]) == pytest.approx(float(torch.stack(expected)[:, row].mean()), abs=1e-14)
        if len(ids) > 1:  # client 2 has one step only
            assert float(grad.reported()[2]) == pytest.approx(float(expected[0][2]), abs=1e-14)


def test_a_clients_update_does_not_depend_on_other_clients(quick):
    """The same client in cohorts of one and of three, on the loop: the same bits."""
    alone = quick(selection=fm.FixedCohorts([[3]], [[1.0]]), rounds=1, engine="loop").params
    among = quick(selection=fm.FixedCohorts([[7, 3, 1]], [[0.0, 1.0, 0.0]]), rounds=1, engine="loop").params
    assert torch.equal(alone, among)
