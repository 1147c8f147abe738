"""Time of clipping, noise and accounting, as a share of a round.

    python benchmarks/privacy.py mnist --device cpu

The jobs are those of engines.py. Rounds of `fm.run` with FedAvg, vectorised (or compiled, `--engine`), with and without
`privacy=`, alternate, so that other load on the machine meets both. Times are the least of all rounds. `--mechanism`
chooses one of `MECHANISMS`.
"""

from __future__ import annotations

import argparse

from engines import JOBS, Ours

import fedmos as fm

COMMON = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}
MECHANISMS = {
    "Gaussian": fm.privacy.Gaussian(**COMMON),
    "MatrixFactorization": fm.privacy.MatrixFactorization(**COMMON, bands=16),
    "Local": fm.privacy.Local(**COMMON),
    "DiscreteGaussian": fm.privacy.DiscreteGaussian(**COMMON),
}


def round_time(name: str, device: str, engine: str, mechanism: str, private: bool) -> float:
    """Return the least time of a round, in seconds."""
    ours = Ours(JOBS[name], "FedAvg", device, engine, None)
    if mechanism == "MatrixFactorization":
        ours.arguments["selection"] = fm.Cyclic(m=ours.arguments["selection"].m)
    if mechanism == "DiscreteGaussian":
        ours.arguments["aggregation"] = fm.aggregation.Secure()
    if private:
        ours.arguments["privacy"] = MECHANISMS[mechanism]
    return min(ours.times(3, 15)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", choices=list(JOBS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--mechanism", default="Gaussian", choices=list(MECHANISMS))
    parser.add_argument("--engine", default="batched", choices=["batched", "compiled"])
    given = parser.parse_args()
    for name in given.jobs:
        pairs = [
            [round_time(name, given.device, given.engine, given.mechanism, private) for private in (False, True)]
            for _ in range(given.repeat)
        ]
        plain, private = (min(times) for times in zip(*pairs, strict=True))
        share = (private - plain) / plain
        print(f"{name}: {1e3 * plain:.1f} ms a round, {1e3 * private:.1f} ms with {given.mechanism} ({share:+.1%})")


if __name__ == "__main__":
    main()
