"""Checks of changed configurations."""

import tomllib

from fedmos.config import schema as config
from helpers.config_fuzz import (
    kinds,
    mutated,
    outcome,
    toml,
    torn,
)


def check_mutated(number, mutations):
    kind, base, model = kinds(number)
    table = mutated(base, mutations)
    return outcome(kind, lambda: config.parse(model, table), table)


def check_text(number, mutations, path):
    kind, base, model = kinds(number)
    table = mutated(base, mutations)
    path.write_bytes(toml(table).encode("utf-8", "replace"))
    return outcome(kind, lambda: config.load(model, path), table)


def check_torn(number, cuts, path):
    kind, base, model = kinds(number)
    raw = torn(toml(base).encode(), cuts)
    path.write_bytes(raw)
    try:
        table = tomllib.loads(raw.decode())
    except (ValueError, RecursionError):
        table = None
    result = outcome(kind, lambda: config.load(model, path), table)
    assert table is not None or result == "refused"
    return result
