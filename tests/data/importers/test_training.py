"""One round of training on each kind of own data."""

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos import FederatedData
from helpers.own_data import COLUMNS, KINDS, PARTITIONERS, ROWS, every_kind, pictures, png, rows

pd = pytest.importorskip("pandas")
Image = pytest.importorskip("PIL.Image")


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(x).mean(1))


def play(data: FederatedData, model: nn.Module, **more) -> fm.Record:
    before = data.x.clone(), data.y.clone()
    algorithm, selection = fm.FedMoS(lr=0.01), fm.Uniform(m=min(2, len(data)))
    records = [
        fm.run(
            model=model,
            data=data,
            algorithm=algorithm,
            selection=selection,
            rounds=1,
            local_steps=2,
            batch_size=2,
            engine=engine,
            **more,
        ).history[-1]
        for engine in ("loop", "batched")
    ]
    assert torch.equal(data.x, before[0])
    assert torch.equal(data.y, before[1])
    assert np.isfinite(records[0].train_loss)
    assert records[0].train_loss == pytest.approx(records[1].train_loss, rel=1e-4)
    return records[0]


@every_kind
def test_a_round_on_a_table(kind, tmp_path):
    table = KINDS[kind](rows(age=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), tmp_path)
    data = FederatedData.from_frame(table, **COLUMNS, test=table)
    record = play(data, fm.models.logistic(features=3, classes=3))
    assert 0 <= record.accuracy <= 1
    real = FederatedData.from_frame(
        table, client_column="user", target_column="height", input_columns=["age", "member"], test=table
    )
    record = play(real, nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), loss="mse")
    assert np.isfinite(record.test_loss)
    tokens = FederatedData.from_frame(
        KINDS[kind](rows(text=[[1, 2], [3, 4], [5, 6], [7, 8], [9, 0], [1, 1]]), tmp_path),
        **COLUMNS,
        input_columns="text",
    )
    play(tokens, Tokens())


def test_a_round_on_a_folder(album):
    play(FederatedData.from_folder(album[0]), fm.models.logistic(features=20, classes=2))


def images_in_a_table() -> FederatedData:
    frame = pd.DataFrame({"image": [png(p) for p in pictures(6, 4, 5)], "user": ROWS["user"], "label": ROWS["label"]})
    return FederatedData.from_frame(frame, **COLUMNS, test=frame)


def images_of_hugging_face() -> FederatedData:
    hf = pytest.importorskip("datasets")
    made = hf.Dataset.from_dict(
        {"image": [Image.fromarray(p) for p in pictures(6, 4, 5)], "user": ROWS["user"], "label": ROWS["label"]},
        features=hf.Features({"image": hf.Image(), "user": hf.Value("string"), "label": hf.Value("string")}),
    )
    return FederatedData.from_hf(made, client_column="user", test=made)


@pytest.mark.parametrize("make", [images_in_a_table, images_of_hugging_face])
def test_a_round_on_other_images(make):
    play(make().declare(normalize=fm.Normalize(mean=0.5, std=0.5)), fm.models.logistic(features=20, classes=3))


@pytest.mark.parametrize("make", [images_in_a_table, images_of_hugging_face])
def test_a_round_on_other_images_needs_no_more_than_one_on_a_folder(make):
    """Images from a folder are ready for a model; the same images from elsewhere should be as well."""
    play(make(), fm.models.logistic(features=20, classes=3))


def test_a_round_on_hugging_face_data(flower, numbered):
    small = numbered.map(lambda row: {"number": row["number"] % 5})
    play(FederatedData.from_hf(small, client_column="user", test=small), fm.models.logistic(features=1, classes=3))
    partitioner = PARTITIONERS["Dirichlet"](flower)
    partitioner.dataset = small
    data = FederatedData.from_flower(partitioner, input_columns="number")
    play(data, fm.models.logistic(features=1, classes=3))
