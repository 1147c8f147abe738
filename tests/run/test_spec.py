"""`RunSpec`: one declaration of a run's options, from which `fm.run` and `fm.run_many` follow."""

import inspect
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

import fedmos as fm
from fedmos.run.options import options_of
from fedmos.run.spec import RunSpec


def test_run_has_the_parameters_of_the_spec():
    given, expected = inspect.signature(fm.run).parameters, inspect.signature(RunSpec).parameters
    assert list(given) == list(expected) == [f.name for f in fields(RunSpec)]
    assert [p.default for p in given.values()] == [p.default for p in expected.values()]
    assert [p.kind for p in given.values()] == [p.kind for p in expected.values()]
    positional = [name for name, p in given.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["model", "data", "algorithm", "selection"]
    assert inspect.signature(fm.run).return_annotation is fm.Result


def test_run_documents_every_option():
    arguments = fm.run.__doc__.split("Args:\n")[1].split("\n\n")[0]
    documented = [line.strip().split(":")[0] for line in arguments.splitlines() if line[4] != " "]
    assert documented == list(options_of(RunSpec))
    assert max(map(len, fm.run.__doc__.splitlines())) <= 120


def test_options_are_normalised(run_arguments):
    spec = RunSpec(
        **run_arguments | {"rounds": np.int64(3), "seed": np.int64(4)}, weight_decay=0, lr_decay={np.int64(2): 1}
    )
    assert [type(v) for v in (spec.rounds, spec.seed, spec.weight_decay)] == [int, int, float]
    assert spec.lr_decay == {2: 1.0}
    assert type(next(iter(spec.lr_decay))) is int


def test_a_spec_is_frozen_and_can_be_changed_by_replace(run_arguments):
    spec = RunSpec(**run_arguments)
    with pytest.raises(FrozenInstanceError):
        spec.rounds = 4
    assert replace(spec, rounds=4).rounds == 4
    with pytest.raises(ValueError, match=r"run: 'rounds' must be an integer ≥ 1, got 0"):
        replace(spec, rounds=0)


def test_none_or_a_valid_value_is_accepted_where_none_is_the_default():
    for name, described in options_of(RunSpec).items():
        default = next(f.default for f in fields(RunSpec) if f.name == name)
        if described.rule is not None and default is None:
            assert described.checked("run", name, None) is None
            with pytest.raises(ValueError, match=rf"run: '{name}' must be .* or None, got "):
                described.checked("run", name, object())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"local_stps": 3}, r"run() got an unexpected keyword argument 'local_stps' (did you mean 'local_steps'?)"),
        ({"xyz": 3}, r"run() got an unexpected keyword argument 'xyz'"),
    ],
)
def test_an_unknown_argument_is_a_type_error(run_arguments, given, sentence):
    with pytest.raises(TypeError) as caught:
        fm.run(**run_arguments | given)
    assert str(caught.value) == sentence
    with pytest.raises(TypeError) as caught:
        fm.run_many([run_arguments | given])
    assert str(caught.value) == sentence.replace("run()", "run_many()")


def test_a_missing_or_repeated_argument_is_a_type_error(run_arguments):
    del run_arguments["rounds"]
    with pytest.raises(TypeError, match=r"run\(\) missing a required argument: 'rounds'"):
        fm.run(**run_arguments)
    with pytest.raises(TypeError, match=r"run\(\) multiple values for argument 'model'"):
        fm.run(run_arguments["model"], **run_arguments, rounds=1)
    with pytest.raises(TypeError, match=r"run\(\) too many positional arguments"):
        fm.run(*run_arguments.values(), 3)


def test_positional_and_keyword_arguments_are_the_same_run(run_arguments):
    parts, options = list(run_arguments.values())[:4], dict(list(run_arguments.items())[4:])
    positional = fm.run(*parts, **options)
    assert positional.params.equal(fm.run(**run_arguments).params)
    assert positional.params.equal(fm.run_many([run_arguments])[0].params)
