"""Aggregation rules and attacks in configuration files."""

import pytest

import fedmos as fm
from fedmos.config import schema as config
from helpers.config_fuzz import COMPARE, RUN

TRIMMED = {"name": "TrimmedMean", "fraction": 0.2}
FLIP = {"name": "SignFlip", "scale": 3.0, "clients": [1, 2]}


def spec_of(table):
    settings = config.parse(config.RunConfig, table)
    return settings.spec(settings.algorithm, settings.selection, settings.seed)


def test_a_run_has_them():
    made = spec_of(RUN | {"aggregation": TRIMMED, "attack": FLIP})
    assert made.aggregation == fm.aggregation.TrimmedMean(0.2)
    assert made.attack == fm.attacks.SignFlip(3.0, clients=(1, 2))
    assert spec_of(RUN).aggregation is None


def test_a_method_of_a_comparison_has_its_own():
    methods = [dict(method) for method in COMPARE["methods"]]
    methods[0] |= {"aggregation": TRIMMED}
    made = config.parse(config.CompareConfig, COMPARE | {"methods": methods, "attack": FLIP})
    made.check()
    assert made.own_options(made.methods[0]) == {"aggregation": fm.aggregation.TrimmedMean(0.2)}
    assert set(made.own_options(made.methods[1])) == {"local"}


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"aggregation": {"name": "Medain"}}, r"aggregation.name: must be one of ClippedMean.*did you mean 'Median'\?"),
        ({"aggregation": {"name": "TrimmedMean"}}, "aggregation: TrimmedMean needs fraction"),
        ({"aggregation": {"name": "Krum", "faulty": 50}}, "aggregation: Cannot use aggregation=Krum"),
        (
            {"aggregation": {"name": "TrimmedMean", "fraction": 0.7}},
            r"aggregation.fraction: must be in \[0, 0.5\), got 0.7",
        ),
        ({"attack": {"name": "SignFlip"}}, "attack: .*exactly one of 'share' and 'clients' must be given"),
        ({"attack": {"name": "SignFlip", "share": 0.1, "size": 2}}, "attack.size: SignFlip has no such field"),
        ({"attack": {"name": "SignFlip", "clients": [10**6]}}, "attack.clients: must be numbers in 0 … 11 or names"),
    ],
)
def test_mistakes_are_named_with_their_place(table, text):
    with pytest.raises(config.ConfigError, match=text):
        spec_of(RUN | table)
