"""A run is resumed with the options it had, compared by value."""

import json
from dataclasses import dataclass
from hashlib import sha256

import pytest
import torch
from torch import Tensor, nn

import fedmos as fm
from fedmos.run.info import RunInfo


@dataclass(frozen=True)
class Scaled(fm.Algorithm):
    """FedAvg with a factor for every parameter."""

    lr: float
    factors: Tensor

    def step(self, y, s, c, grad, k):
        return y - c.lr * self.factors * grad(y), s


@dataclass(frozen=True)
class Noted(fm.Uniform):
    note: object = None

    def __repr__(self) -> str:
        return "Noted()"


@pytest.mark.parametrize(("model", "size"), [("logistic", 650), ("mlp", 6420)])  # repr prints 1000 entries at most
def test_a_changed_entry_of_a_tensor_is_refused(quick, tmp_path, model, size):
    same = {"model": getattr(fm.models, model)(features=64), "out": tmp_path / "run"}
    quick(**same, algorithm=Scaled(0.1, torch.ones(size)))
    other = torch.ones(size)
    other[size // 2] = 0.5
    with pytest.raises(ValueError, match="Cannot resume") as caught:
        quick(**same, algorithm=Scaled(0.1, other), rounds=5, resume=True)
    assert str(caught.value) == (
        f"Cannot resume the run in {tmp_path / 'run'} because its 'algorithm.factors' is a float32 tensor of shape "
        f"({size},), got one with other values; use a new folder"
    )
    assert len(quick(**same, algorithm=Scaled(0.1, torch.ones(size)), rounds=5, resume=True).history) == 5


def test_a_change_that_repr_does_not_show_is_refused(quick, tmp_path):
    quick(selection=Noted(m=4, note={"a": [1, 2]}), out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"because its 'selection\.note' is a mapping, got one with other values"):
        quick(selection=Noted(m=4, note={"a": [1, 3]}), out=tmp_path / "run", resume=True)


def test_a_loss_of_the_same_name_with_other_fields_is_refused(quick, tmp_path):
    quick(loss=nn.CrossEntropyLoss(label_smoothing=0.1), out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"because its 'loss\.label_smoothing' is 0\.1, got 0\.2"):
        quick(loss=nn.CrossEntropyLoss(label_smoothing=0.2), out=tmp_path / "run", resume=True)
    assert len(quick(loss=nn.CrossEntropyLoss(label_smoothing=0.1), out=tmp_path / "run", resume=True).history) == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"algorithm": fm.FedAvg(lr=0.2)},
            "its 'algorithm' is 'FedAvg(lr=0.1, server_lr=1.0)', got 'FedAvg(lr=0.2, server_lr=1.0)'",
        ),
        ({"seed": 1}, "its 'seed' is 0, got 1"),
        ({"weight_decay": 0.1}, "its 'weight_decay' is 0.0, got 0.1"),
        ({"lr_decay": {1: 0.5}}, "its 'lr_decay' is 1.0, got {'1': 0.5}"),
        ({"dtype": torch.float64}, "its 'dtype' is 'float32', got 'float64'"),
        ({"loss": "mse"}, "Cannot train the model"),
        ({"model": fm.models.mlp(features=64)}, "its 'parameters' is 650, got"),
    ],
)
def test_the_sentence_names_the_option_and_both_values(quick, tmp_path, change, sentence):
    quick(out=tmp_path / "run")
    with pytest.raises(ValueError, match="Cannot") as caught:
        quick(**{"out": tmp_path / "run", "resume": True} | change)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("change", [{"rounds": 5}, {"eval_every": 2}, {"target": {"accuracy": 1.0}}, {"device": "cpu"}])
def test_options_that_may_change(quick, tmp_path, change):
    quick(out=tmp_path / "run")
    quick(**{"out": tmp_path / "run", "resume": True} | change)


def test_fewer_rounds_than_were_played_are_refused(quick, tmp_path):
    quick(out=tmp_path / "run")
    with pytest.raises(ValueError) as caught:
        quick(out=tmp_path / "run", rounds=2, resume=True)
    assert str(caught.value) == (
        f"Cannot resume the run in {tmp_path / 'run'} with 'rounds' = 2 because it has played 3 rounds; use at least 3, or "
        "a new folder"
    )


def test_equal_numbers_of_other_types_are_the_same(quick, tmp_path):
    quick(algorithm=fm.FedAvg(lr=1), out=tmp_path / "run")
    quick(algorithm=fm.FedAvg(lr=1.0), out=tmp_path / "run", resume=True)


def rewrite_info(folder, change) -> None:
    """Change what the checkpoints of a folder record about their run."""
    for path in folder.glob("checkpoints/*/manifest.json"):
        content = json.loads(path.read_text())["content"]
        change(content["info"])
        sealed = {"sha256": sha256(json.dumps(content).encode()).hexdigest(), "content": content}
        path.write_text(json.dumps(sealed))


def test_a_folder_of_an_earlier_version_is_compared_by_text(quick, tmp_path):
    system = fm.System(speed=fm.PerClient([1000.0] * 20))
    quick(system=system, out=tmp_path / "run")

    def as_before(info):
        del info["option_values"]
        assert "PerClient(" in info["system"]
        info["system"] = info["system"].replace("PerClient(", "Table(")

    rewrite_info(tmp_path / "run", as_before)
    assert "option_values" not in fm.Result.load(tmp_path / "run").info
    with pytest.raises(ValueError, match=r"because its 'algorithm' is 'FedAvg\(lr=0.1"):
        quick(system=system, algorithm=fm.FedAvg(lr=0.2), out=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"because its 'system' is"):
        quick(system=fm.System(speed=fm.PerClient([999.0] * 20)), out=tmp_path / "run", resume=True)
    resumed = quick(system=system, out=tmp_path / "run", rounds=5, resume=True)
    assert resumed.params.equal(quick(system=system, rounds=5).params)
    assert "option_values" in fm.Result.load(tmp_path / "run").info


def test_an_option_that_a_folder_does_not_record_had_its_default(quick, tmp_path):
    quick(out=tmp_path / "run")
    rewrite_info(tmp_path / "run", lambda info: (info["option_values"].pop("clip"), info.pop("clip")))
    with pytest.raises(ValueError, match=r"because its 'clip' is None, got 1\.0"):
        quick(clip=1.0, out=tmp_path / "run", resume=True)
    assert len(quick(out=tmp_path / "run", rounds=4, resume=True).history) == 4


def test_info_is_typed_and_a_mapping(quick, tmp_path):
    result = quick(out=tmp_path / "run", batch_size=None)
    loaded = fm.Result.load(tmp_path / "run").info
    for info in (result.info, loaded):
        assert isinstance(info, RunInfo)
        assert info["algorithm"] == repr(fm.FedAvg(lr=0.1))
        assert info["option_values"]["algorithm"] == {"name": "FedAvg", "fields": {"lr": 0.1, "server_lr": 1.0}}
        assert info["batch_size"] is None
        assert info["engine"] == info.engine
        assert info.get("diverged") is None
        assert "diverged" not in info
        assert info["availability"] == "None"
        assert dict(info) == info.to_json()
    assert {k: v for k, v in loaded.items() if k != "checkpoints"} == {
        k: v for k, v in result.info.items() if k != "checkpoints"
    }


def test_unknown_entries_of_a_folder_are_kept(quick, tmp_path):
    quick(out=tmp_path / "run")
    rewrite_info(tmp_path / "run", lambda info: info.update(later="x"))
    assert fm.Result.load(tmp_path / "run").info["later"] == "x"
