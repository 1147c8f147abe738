"""Samples with several inputs, and sequences of unequal length."""

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.core.input_layout import InputLayout
from fedmos.core.losses import PADDING


class Masked(nn.Module):
    """Mean of the embeddings of unmasked tokens, and a row of a table."""

    def __init__(self, table: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head, self.dropout = nn.Embedding(11, 4), nn.Linear(4 + 3 * table, 2), nn.Dropout(0.2)

    def forward(self, tokens, mask, table=None):
        kept = mask[..., None].to(self.head.weight.dtype)
        mean = (self.embedding(tokens) * kept).sum(1) / kept.sum(1)
        return self.head(self.dropout(mean if table is None else torch.cat([mean, table], 1)))


def samples(n, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 11, (n, 5), generator=generator)
    mask = torch.arange(5) < torch.randint(1, 6, (n, 1), generator=generator)
    table = torch.randn(n, 3, generator=generator)
    return {"tokens": tokens, "mask": mask, "table": table}, (table[:, 0] > 0).long()


def federation(sizes=(4, 9, 6), **options):
    clients = [samples(n, i) for i, n in enumerate(sizes)]
    return fm.FederatedData.from_arrays(clients, test=samples(7, 99), **options), clients


OPTIONS = {"rounds": 3, "local_steps": 2, "batch_size": 4}


def train(data, model=None, **options):
    return fm.run(model or Masked(), data, fm.FedAvg(lr=0.3), fm.Full(), **{**OPTIONS, **options})


def test_a_layout_returns_what_it_packed():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([[True, False, True], [False, False, True]]),
        "c": np.array([2**60 + 1, -5]),
        "d": np.arange(24, dtype=np.uint8).reshape(2, 1, 3, 4),
        "e": np.array([[1.5], [2.5]]),
    }
    layout = InputLayout.of(arrays)
    packed = torch.from_numpy(layout.pack(arrays))
    assert packed.dtype == torch.int64
    for name, v in layout.unpack(packed).items():
        assert v.numpy().dtype == arrays[name].dtype
        assert np.array_equal(v, arrays[name])
    assert layout.unpack(packed, torch.float32)["e"].dtype == torch.float32
    assert torch.equal(layout.unpack(packed.expand(3, 2, -1))["d"][1], torch.from_numpy(arrays["d"]))
    assert InputLayout.from_json(layout.to_json()) == layout


def test_clients_have_their_inputs():
    data, clients = federation(names=["a", "b", "c"])
    for i, (x, y) in enumerate(clients):
        found, targets = data.client(i)
        assert torch.equal(targets, y)
        assert {name: v.dtype for name, v in found.items()} == {name: v.dtype for name, v in x.items()}
        assert all(torch.equal(found[name], x[name]) for name in x)
    assert data.inputs(data.client("b")[0], torch.float64)["table"].dtype == torch.float64
    assert data.describe().labels.classes == 2
    other, _ = federation()
    assert other.fingerprint() == data.fingerprint()


def test_engines_agree():
    data, _ = federation()
    loop = train(data, engine="loop", dtype=torch.float64)
    batched = train(data, engine="batched", dtype=torch.float64)
    assert torch.allclose(loop.params, batched.params, atol=1e-12)
    assert not torch.equal(loop.params, torch.nn.utils.parameters_to_vector(Masked().double().parameters()))
    for a, b in zip(loop.history, batched.history, strict=True):
        assert a.test_loss == pytest.approx(b.test_loss, abs=1e-10)
        assert a.accuracy == b.accuracy


def test_training_is_that_of_a_plain_loop():
    """One client with all its data in each step: gradient descent by hand."""
    x, y = samples(8, 3)
    model = Masked()
    model.dropout.p = 0.0
    data = fm.FederatedData.from_arrays([(x, y)], test=(x, y))
    result = train(data, model, batch_size=None, engine="loop", local_steps=1)
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(**x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= 0.3 * g
    assert torch.allclose(result.params, torch.nn.utils.parameters_to_vector(model.parameters()), atol=1e-6)
    found = nn.functional.cross_entropy(model(**x), y)
    assert result.history[-1].test_loss == pytest.approx(found.item(), abs=1e-5)


def test_runs_side_by_side_are_those_alone():
    data, _ = federation()
    specs = [{"algorithm": fm.FedAvg(lr=lr), "seed": seed} for lr, seed in ((0.1, 0), (0.3, 1))]
    options = {**OPTIONS, "engine": "batched"}
    alone = [fm.run(Masked(), data, selection=fm.Full(), **one, **options) for one in specs]
    many = fm.run_many([dict(model=Masked(), data=data, selection=fm.Full(), **one, **options) for one in specs])
    for a, b in zip(alone, many, strict=True):
        assert torch.allclose(a.params, b.params, atol=1e-6)


def test_a_run_resumes_and_predicts(tmp_path):
    data, clients = federation()
    whole = train(data, rounds=4, out=tmp_path / "whole")
    train(data, rounds=2, out=tmp_path / "part")
    assert torch.equal(train(data, rounds=4, out=tmp_path / "part", resume=True).params, whole.params)
    x, _ = clients[1]
    expected = whole.model(**x)
    assert torch.allclose(whole.predict(x), expected, atol=1e-6)
    assert torch.allclose(fm.Result.load(tmp_path / "whole", Masked()).predict(x), expected, atol=1e-6)
    with pytest.raises(ValueError, match="predict: 'x' must be a dictionary with the inputs tokens, mask, table"):
        whole.predict(x["table"])


def without(x, name):
    return {k: v for k, v in x.items() if k != name}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, y: (without(x, "mask"), y), "client 1 must have the inputs tokens, mask, table of client 0, got to"),
        (lambda x, y: (x["table"], y), r"client 1 must be a pair \(inputs by name, y\), like client 0"),
        (lambda x, y: ({**x, "mask": x["mask"][:3]}, y), r"x\['mask'\] and y of client 1 must be equally long"),
        (lambda x, y: ({**x, "table": x["table"][:, :2]}, y), r"x\['table'\] of client 1 must be like client 0's"),
        (lambda x, y: ({**x, "table": x["table"] * torch.nan}, y), r"x\['table'\] of client 1 must be finite"),
    ],
)
def test_inputs_that_differ_between_clients_get_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        fm.FederatedData.from_arrays([samples(4, 0), change(*samples(5, 1))])


def test_what_does_not_go_with_several_inputs_gets_a_sentence():
    data, clients = federation()
    with pytest.raises(ValueError, match="Cannot normalise or augment samples with several inputs"):
        data.declare(normalize=fm.Normalize(0, 1))
    renamed = [({"words": x["tokens"], "mask": x["mask"]}, y) for x, y in clients]
    with pytest.raises(ValueError, match="the input 'words' because its forward has the arguments tokens, mask, table"):
        train(fm.FederatedData.from_arrays(renamed))
    fewer = [(without(x, "mask"), y) for x, y in clients]
    with pytest.raises(
        ValueError, match=r"Cannot run the model on inputs tokens \(5,\) \(int64\), table \(3,\) \(float32"
    ):
        train(fm.FederatedData.from_arrays(fewer))
    large = [({**x, "tokens": x["tokens"] + (i == 2) * 5}, y) for i, (x, y) in enumerate(clients)]
    with pytest.raises(ValueError, match="Cannot run the model on inputs tokens"):
        train(fm.FederatedData.from_arrays(large))


# Sequences of unequal length

SEQUENCES = [([[1, 2, 3], [4]], [0, 1]), ([[5, 6], [7, 8, 9, 10]], [1, 0])]


def test_sequences_are_padded_to_the_longest_of_all_clients():
    data = fm.FederatedData.from_arrays(SEQUENCES, test=([[1, 2, 3, 4, 5]], [0]), padding=0)
    assert data.x.tolist() == [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [5, 6, 0, 0, 0], [7, 8, 9, 10, 0]]
    assert data.x.dtype == torch.int64
    assert data.layout is None
    tensors = [([torch.tensor(s) for s in x], y) for x, y in SEQUENCES]
    assert fm.FederatedData.from_arrays(tensors, padding=-1).x[1].tolist() == [4, -1, -1, -1]
    series = [([np.ones((n, 2), np.float32) for n in (3, 1)], [0, 1])]
    assert fm.FederatedData.from_arrays(series, padding=0).x.shape == (2, 3, 2)


def test_masks_and_lengths_are_inputs():
    data = fm.FederatedData.from_arrays(SEQUENCES, padding=0, mask="mask", lengths="lengths")
    x, _ = data.client(1)
    assert x["x"].tolist() == [[5, 6, 0, 0], [7, 8, 9, 10]]
    assert x["mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert x["lengths"].tolist() == [2, 4]
    named = [({"tokens": x}, y) for x, y in SEQUENCES]
    data = fm.FederatedData.from_arrays(named, padding=0, mask="mask")
    for engine in ("loop", "batched"):
        train(data, Masked(table=False), engine=engine)
    equal = fm.FederatedData.from_arrays([({"tokens": [[1, 2], [3, 4]]}, [0, 1])], padding=0, mask="mask")
    assert equal.client(0)[0]["mask"].all()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, 3)

    def forward(self, x):
        return self.table(x).transpose(1, 2)


def test_target_sequences_are_padded_with_the_target_that_losses_ignore():
    tagged = [(x, [[v % 3 for v in row] for row in x]) for x, _ in SEQUENCES]
    data = fm.FederatedData.from_arrays(tagged, padding=0, test=tagged[0])
    assert data.y[0].tolist() == [1, 2, 0, PADDING]
    loop, batched = (train(data, Tagger(), engine=engine, rounds=30) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, atol=1e-5)
    assert loop.history[-1].accuracy == 1.0


@pytest.mark.parametrize(
    ("clients", "options", "sentence"),
    [
        (SEQUENCES, {}, "x of client 0 must be an array of numbers, got sequences of length 1 to 3; use padding=0"),
        (SEQUENCES, {"mask": "mask"}, "'padding' must be given with 'mask' or 'lengths', got None"),
        (SEQUENCES, {"padding": 0.5}, "Cannot pad 'x' because its type is int64, which does not hold the padding 0.5"),
        (SEQUENCES, {"padding": "0"}, "'padding' must be a number, got '0'"),
        ([([1.0, 2.0], [0, 1])], {"padding": 0}, "'padding' must be None where no input is a list of sequences"),
        ([([[[1, 2]], [[1], [2]]], [0, 1])], {"padding": 0}, "its sequences have items of different shapes"),
        (
            [({"a": [[1], [1, 2]], "b": [[1, 2], [1]]}, [0, 1])],
            {"padding": 0, "mask": "mask"},
            "Cannot make a mask because 'b' has other lengths than the input before it",
        ),
    ],
)
def test_sequences_that_cannot_be_padded_get_a_sentence(clients, options, sentence):
    with pytest.raises(ValueError) as error:
        fm.FederatedData.from_arrays(clients, **options)
    assert sentence in str(error.value)


# Deployed


def test_a_deployment_trains_as_the_simulation(tmp_path):
    pytest.importorskip("flwr")
    from helpers.flower_runs import Deployed, arguments, assert_same

    data, _ = federation()
    given = arguments(model=Masked(), data=data, selection=fm.Full(), rounds=2)
    assert_same(Deployed(tmp_path, given).run(), fm.run(**given))
