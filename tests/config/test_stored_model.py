"""`Result.load(folder).model` of runs of the command line: the configuration in the folder names the model."""

import shutil

import pytest
import torch

import fedmos as fm
from fedmos.config import schema as config
from fedmos.storage import RunFolder
from helpers import comparisons
from helpers.configs import RUN


@pytest.fixture
def folder(tmp_path):
    """The folder of a run of the command line, in the model's dtype float64."""
    (tmp_path / "run.toml").write_text(RUN)
    settings = config.load(config.RunConfig, tmp_path / "run.toml", ["seed=3", "dtype='float64'"])
    settings.run(
        settings.algorithm, settings.selection, settings.seed, out=RunFolder(tmp_path / "run", settings.kept())
    )
    return tmp_path / "run"


def test_the_model_of_a_run(folder):
    result = fm.Result.load(folder)
    assert result.model[1].weight.dtype == torch.float64
    assert not result.model.training
    assert torch.equal(torch.cat([p.flatten() for p in result.model.parameters()]), result.params)
    x, y = fm.datasets.load("digits").partition(fm.partition.IID(), clients=2).test
    accuracy = (result.predict(x).argmax(1) == y).double().mean()
    assert float(accuracy) == pytest.approx(result.history[-1].accuracy)


def test_a_moved_folder_needs_neither_data_nor_an_empty_place(folder, tmp_path, monkeypatch):
    moved = shutil.move(folder, tmp_path / "elsewhere")
    monkeypatch.chdir(moved)
    assert fm.Result.load(".").model is not None


def test_a_configuration_that_names_another_model_is_refused(folder):
    path = folder / "config.toml"
    path.write_text(path.read_text().replace('"logistic"', '"mlp"'))
    with pytest.raises(ValueError, match="because its architecture is not the run's"):
        _ = fm.Result.load(folder).model
    path.write_text(path.read_text().replace('"mlp"', '"lgistic"'))
    with pytest.raises(ValueError, match="did you mean 'logistic'"):
        _ = fm.Result.load(folder).model


@pytest.mark.parametrize("text", [None, "model = 3", "[model", 'from_python = true\nmodel = "4f2a"'])
def test_a_folder_that_names_no_model(folder, text):
    (folder / "config.toml").unlink() if text is None else (folder / "config.toml").write_text(text)
    with pytest.raises(ValueError, match=r"use Result\.load\(path, model\)"):
        _ = fm.Result.load(folder).model


def test_the_models_of_a_comparison(tmp_path):
    settings = comparisons.settings(rounds=2, seeds=[0, 1], methods=comparisons.METHODS[:1])
    comparisons.compare(settings, tmp_path / "out")
    folders = sorted((tmp_path / "out" / "runs").iterdir())
    assert len(folders) == 2
    for one in folders:
        result = fm.Result.load(one)
        assert torch.equal(torch.cat([p.flatten() for p in result.model.parameters()]), result.params)
