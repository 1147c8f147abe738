"""Local optimisers in configurations."""

from __future__ import annotations

import pytest

import fedmos as fm
from fedmos.config import schema as config
from fedmos.experiments import runner
from fedmos.storage import toml
from helpers.configs import TABLE

RUN = TABLE | {"algorithm": {"name": "FedAvg", "lr": 0.01}, "selection": {"name": "Uniform", "m": 2}}


def built(**options):
    settings = config.parse(config.RunConfig, RUN | options)
    return settings.arguments(settings.algorithm, settings.selection, settings.seed)["local"]


def test_tables_are_the_objects_of_the_same_name():
    assert built() is None
    assert built(local={"name": "Adam", "beta2": 0.99}) == fm.local.Adam(beta2=0.99)
    chain = [{"name": "SAM", "rho": 0.1}, {"name": "SGD", "momentum": 0.9, "keep": True}]
    assert built(local=chain) == [fm.local.SAM(rho=0.1), fm.local.SGD(momentum=0.9, keep=True)]
    for name in fm.local.__all__:
        if name != "LocalOptimizer":
            assert built(local={"name": name}) == getattr(fm.local, name)()


def test_a_configuration_trains_as_the_call(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(toml.dumps(RUN | {"local": [{"name": "SAM", "rho": 0.1}, {"name": "AdamW", "weight_decay": 0.1}]}))
    settings = config.load(config.RunConfig, path)
    result = settings.run(settings.algorithm, settings.selection, settings.seed, out=tmp_path / "run")
    local = [fm.local.SAM(rho=0.1), fm.local.AdamW(weight_decay=0.1)]
    arguments = settings.arguments(settings.algorithm, settings.selection, settings.seed)
    assert result.params.equal(fm.run(**arguments | {"local": local}).params)
    assert fm.Result.load(tmp_path / "run").info["local"] == result.info["local"] == [repr(v) for v in local]


def test_a_field_can_be_overridden(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(toml.dumps(RUN | {"local": {"name": "SAM", "rho": 0.1}}))
    settings = config.load(config.RunConfig, path, ["local.rho=0.2"])
    assert settings.arguments(settings.algorithm, settings.selection, 0)["local"] == fm.local.SAM(rho=0.2)


@pytest.mark.parametrize(
    ("local", "sentence"),
    [
        ({"name": "Adm"}, "local.name: must be one of SAM, SGD, Adam, AdamW, Muon, got 'Adm' (did you mean 'Adam'?)"),
        ({"name": "Adam", "beta": 0.9}, "local.beta: Adam has no such field (did you mean 'beta2'?); its fields: "),
        ([{"name": "SAM"}, {"name": "SGD", "momentum": -1}], "local.1.momentum: must be ≥ 0, got -1"),
        ([], "configuration: local: must be a list of 1 to 1,000 entries, got []"),
        (3, "configuration: local: must be a table, got 3"),
        (
            [{"name": "Adam"}, {"name": "SAM"}],
            "Cannot use SAM after Adam in local= because SAM acts on the gradient, before every other optimiser; use "
            "one SAM, first in the list",
        ),
    ],
)
def test_errors_name_the_place(local, sentence):
    with pytest.raises(ValueError) as caught:
        built(local=local)
    assert str(caught.value).startswith(sentence)


def test_a_method_of_a_comparison_has_its_own():
    """FedSAM beside FedAvg, in a comparison whose other methods train with momentum."""
    method = {"algorithm": {"name": "FedAvg", "lr": 0.01}, "selection": {"name": "Uniform", "m": 2}}
    settings = config.parse(
        config.CompareConfig,
        TABLE
        | {
            "title": "SAM",
            "seeds": [0],
            "target": {"accuracy": 0.5},
            "local": {"name": "SGD", "momentum": 0.9},
            "methods": [method | {"label": "a"}, method | {"label": "b", "local": {"name": "SAM"}}],
        },
    )
    settings.check()
    runs = runner.ConfiguredRuns(settings)
    planned = [runner.PlannedRun(label, (), 0) for label in ("a", "b")]
    assert [runs.arguments(run, {})["local"] for run in planned] == [fm.local.SGD(momentum=0.9), fm.local.SAM()]


def test_a_method_that_refuses_its_optimiser_is_found_before_the_first_run():
    method = {"selection": {"name": "Uniform", "m": 2}, "local": {"name": "Adam"}}
    settings = config.parse(
        config.CompareConfig,
        TABLE
        | {
            "title": "Adam",
            "seeds": [0],
            "target": {"accuracy": 0.5},
            "methods": [
                method | {"label": "a", "algorithm": {"name": "FedAvg", "lr": 0.01}},
                method | {"label": "b", "algorithm": {"name": "FedMoS", "lr": 0.01}},
            ],
        },
    )
    with pytest.raises(ValueError, match=r"Cannot use local=Adam.* with FedMoS"):
        settings.check()
