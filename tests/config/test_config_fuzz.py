"""Changed, torn and damaged configuration files get a sentence or are valid."""

import math
import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedmos as fm
from fedmos.config import schema as config
from helpers.config_checks import check_mutated, check_text, check_torn
from helpers.config_fuzz import (
    COMPARE,
    CUTS,
    MUTATIONS,
    PARTS,
    RUN,
    faults,
    kinds,
    mutated,
    outcome,
    places,
    quick_load,
    sentence,
    toml,
)

QUICK = settings(max_examples=70, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def _quick_digits(monkeypatch):
    monkeypatch.setattr(fm.datasets, "load", quick_load)


def test_the_bases_are_valid():
    assert outcome("run", lambda: config.parse(config.RunConfig, RUN), RUN) == "accepted"
    assert outcome("compare", lambda: config.parse(config.CompareConfig, COMPARE), COMPARE) == "accepted"
    for part, options in PARTS.items():
        for option in options:
            table = RUN | {part: option}
            if "synthetic" in option.values():
                table["model"] = {"name": "logistic", "features": 60}
            if "Full" in option.values() or "FixedCohorts" in option.values():
                table["system"] = {}
            assert outcome("run", lambda table=table: config.parse(config.RunConfig, table), table) == "accepted"


BAD = (math.nan, -math.inf, "x", True, -1, 1.5, [], {}, 10**400, "\x00" * 10**6, {"a": {"b": [1]}})


@pytest.mark.parametrize("number", [0, 1])
def test_errors_name_the_field_by_its_full_path(number):
    """Every field in turn, with values that it cannot have."""
    kind, base, model = kinds(number)
    told = 0
    for path in places(base):
        for value in BAD:
            table = mutated(base, [])
            inner = table
            for part in path[:-1]:
                inner = inner[part]
            inner[path[-1]] = value
            name = ".".join(map(str, path))
            if name not in faults(table, kind):
                continue
            with pytest.raises(config.ConfigError) as error:
                config.parse(model, table).check()
            sentence(str(error.value))
            where = ".".join(path[:1] if path[0] in ("target", "lr_decay") else map(str, path))
            assert re.search(rf"(^|: |; ){re.escape(where)}(\.\w+)?: ", str(error.value)), str(error.value)
            told += 1
    assert told > 100


@QUICK
@given(st.integers(0, 1), MUTATIONS)
def test_changed_tables(number, mutations):
    check_mutated(number, mutations)


@QUICK
@given(st.integers(0, 1), MUTATIONS)
def test_changed_files(tmp_path_factory, number, mutations):
    check_text(number, mutations, tmp_path_factory.getbasetemp() / "changed.toml")


@QUICK
@given(st.integers(0, 1), CUTS)
def test_torn_files(tmp_path_factory, number, cuts):
    check_torn(number, cuts, tmp_path_factory.getbasetemp() / "torn.toml")


def test_the_command_line_says_it_in_one_line(tmp_path, capsys, monkeypatch):
    """Exit code 2, one line, nothing written, for fifty configurations that are wrong."""
    from fedmos.cli import commands as cli

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.toml"
    seen = 0

    @settings(max_examples=90, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(MUTATIONS)
    def run(mutations):
        nonlocal seen
        table = mutated({k: v for k, v in RUN.items() if k != "out"}, mutations)
        if seen == 50 or not faults(table, "run"):
            return
        path.write_bytes(toml(table).encode("utf-8", "replace"))
        monkeypatch.setattr(sys, "argv", ["fedmos", "run", "bad.toml"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("Error: ")
        sentence(line.removeprefix("Error: ").replace("bad.toml: ", "configuration: ", 1))
        assert [p.name for p in tmp_path.iterdir()] == ["bad.toml"]
        seen += 1

    run()
    assert seen >= 50
