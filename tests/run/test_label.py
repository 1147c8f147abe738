"""`label`, an option that is declared in `RunSpec` only: argument, configuration key, record and resume follow."""

import tomllib

import pytest

import fedmos as fm
from fedmos.config import schema as config
from fedmos.report.study import read_study
from fedmos.run.callbacks import Progress
from helpers.config_fuzz import RUN


def test_the_label_is_recorded_and_may_change(quick, tmp_path):
    assert quick(out=tmp_path / "run", label="first").info["label"] == "first"
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["label"] == "first"
    quick(out=tmp_path / "run", label="second", rounds=4, resume=True)
    assert fm.Result.load(tmp_path / "run").info["label"] == "second"
    assert [result.label for result in read_study([tmp_path / "run"]).results] == ["second"]


def test_the_label_is_a_key_of_configurations():
    settings = config.parse(config.RunConfig, RUN | {"label": "mine"})
    assert settings.spec(settings.algorithm, settings.selection, settings.seed).label == "mine"
    with pytest.raises(config.ConfigError, match="label: must be a text of 1 to 200 printable characters, got ''"):
        config.parse(config.RunConfig, RUN | {"label": ""})


def test_a_label_must_be_a_text(quick):
    with pytest.raises(ValueError, match="run: 'label' must be a text of 1 to 200 printable characters or None, got 3"):
        quick(label=3)


def test_a_progress_bar_shows_the_label(quick, monkeypatch, capsys):
    monkeypatch.setattr(Progress, "is_enabled", lambda: True)
    quick(label="mine")
    assert "mine" in capsys.readouterr().err
    quick()
    assert "FedAvg" in capsys.readouterr().err
