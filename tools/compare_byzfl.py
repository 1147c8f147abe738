"""Compare aggregation rules and attacks with those of ByzFL on random rows: prints the largest differences.

    pip install --no-deps byzfl && python tools/compare_byzfl.py

ByzFL's Krum counts one neighbour more than the paper, and its ALIE has the opposite sign and the sample's standard
deviation; the arguments below take that into account.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import torch

import fedmos as fm


def byzfl_modules() -> tuple[Any, Any]:
    """Import the modules of aggregators and attacks without the package, which needs torchvision and more."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("byzfl is not installed; pip install --no-deps byzfl")
    package = types.ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.aggregators.aggregators"), importlib.import_module("byzfl.attacks.attacks")


def pairs(S: int, D: int, theirs: Any, attacks: Any) -> dict[str, tuple[Any, Any]]:
    """Return our result and theirs by name, for S rows of D numbers of which one is an outlier."""
    rows = torch.randn(S, D, generator=torch.Generator().manual_seed(S * D), dtype=torch.float64)
    rows[0] *= 50
    weights, f, rules = torch.full((S,), 1 / S, dtype=torch.float64), max(1, S // 5), fm.aggregation
    own, honest, keys = rows[:2], rows[2:], torch.zeros(2, dtype=torch.int64)
    z = 1.5 * ((S - 3) / (S - 2)) ** 0.5
    found = {
        "Median": (rules.Median(), theirs.Median()),
        "TrimmedMean": (rules.TrimmedMean(f / S), theirs.TrMean(f=f)),
        "Krum": (rules.Krum(f - 1), theirs.Krum(f=f)),
        "GeometricMedian": (rules.GeometricMedian(iterations=2000), theirs.GeometricMedian(nu=1e-9, T=2000)),
    }
    forged = {
        "InnerProduct": (fm.attacks.InnerProduct(2.0, share=0.5), attacks.InnerProductManipulation(tau=2.0)),
        "ALIE": (fm.attacks.ALIE(1.5, share=0.5), attacks.ALittleIsEnough(tau=-z)),
    }
    return {name: (ours.aggregate(rows, weights), other(rows)) for name, (ours, other) in found.items()} | {
        name: (ours.forge(own, honest, keys)[0], other(honest)) for name, (ours, other) in forged.items()
    }


def main() -> None:
    """Print the largest difference of every rule and attack."""
    theirs, attacks = byzfl_modules()
    largest: dict[str, float] = {}
    for S in (5, 9, 12, 25):
        for D in (3, 1000):
            for name, (a, b) in pairs(S, D, theirs, attacks).items():
                largest[name] = max(largest.get(name, 0.0), float((a - torch.as_tensor(b)).abs().max()))
    for name, difference in largest.items():
        print(f"{name:16} {difference:.1e}")


if __name__ == "__main__":
    main()
