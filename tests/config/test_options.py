"""Configuration keys follow from the fields of `RunSpec`."""

from dataclasses import MISSING, fields

import pytest

import fedmos as fm
from fedmos.config import schema as config
from fedmos.config.options import TOML_TYPES, option_fields
from fedmos.run.options import options_of
from fedmos.run.spec import RunSpec
from helpers.config_fuzz import RUN


def test_every_option_is_a_key_of_a_run():
    settable = {name for name, option in options_of(RunSpec).items() if option.toml}
    assert settable == set(options_of(RunSpec)) - {"outputs", "progress", "resume", "callbacks"}
    assert set(config.RunConfig.model_fields) == settable | {"diagnostics", "deploy"}


def test_a_comparison_has_the_options_that_its_runs_share():
    shared = {name for name, option in options_of(RunSpec).items() if option.toml and not option.per_run}
    assert set(config.Training.model_fields) == shared | {"diagnostics"}
    assert shared < set(config.CompareConfig.model_fields)
    assert "checkpoint_every" not in config.CompareConfig.model_fields


def test_defaults_are_those_of_the_spec():
    for f in fields(RunSpec):
        if f.metadata["option"].toml and f.name != "dtype":
            field = config.RunConfig.model_fields[f.name]
            assert field.is_required() == (f.default is MISSING), f.name
            assert field.is_required() or field.default == f.default, f.name


def test_only_options_that_differ_from_python_are_declared():
    generated = set(option_fields(per_run=False)) | set(option_fields(per_run=True))
    assert set(TOML_TYPES) < generated
    assert {"rounds", "local_steps", "weight_decay", "clip", "engine", "seed", "checkpoint_every"} <= generated - set(
        TOML_TYPES
    )


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("local_steps", 0, "local_steps: must be an integer ≥ 1, got 0"),
        ("local_steps", 10**7, "local_steps: must be ≤ 1,000,000, got 10000000"),
        ("clip", -1, "clip: must be > 0, got -1"),
        ("personal", "head.*", "personal: must be a list of 1 to 1,000 entries, got 'head.*'"),
        ("precision", "bf15", "precision: must be one of 'tf32', 'bf16', got 'bf15' (did you mean 'bf16'?)"),
        (
            "checkpoint_every",
            "soon",
            "checkpoint_every: must be an integer ≥ 1 or a time such as '30s' or '5min' or None, got 'soon'",
        ),
    ],
)
def test_a_generated_key_is_validated_by_the_rule_of_the_option(key, value, sentence):
    with pytest.raises(config.ConfigError) as caught:
        config.parse(config.RunConfig, RUN | {key: value})
    assert str(caught.value) == f"configuration: {sentence}"


@pytest.mark.parametrize(("given", "over"), [("Cox", "events"), ({"name": "Cox", "over": "samples"}, "samples")])
def test_a_batch_loss_by_name_and_with_fields(given, over):
    run = config.parse(config.RunConfig, RUN | {"loss": given})
    assert run.arguments(run.algorithm, run.selection, 0)["loss"] == fm.losses.Cox(over=over)
    with pytest.raises(ValueError, match="Cox: 'over' must be 'events' or 'samples', got 'x'"):
        fm.losses.Cox(over="x")
