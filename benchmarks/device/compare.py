"""A comparison with several processes on one GPU, where `fedmos compare` has one.

python benchmarks/device/compare.py examples/cifar10_codecs.toml runs/cifar10_codecs --set precision='"tf32"'
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedmos.config.schema import CompareConfig, load
from fedmos.experiments.compare import compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args()
    compare(load(CompareConfig, given.config, given.overrides), given.out, workers=given.workers)


if __name__ == "__main__":
    main()
