"""Noise of prefix sums under `fm.privacy.MatrixFactorization`, relative to independent noise at the same ε.

    python benchmarks/correlated_noise.py --rounds 500

The error is the root-mean-square noise of the sum of all updates so far, over rounds: ‖A C⁻¹‖_F times the sensitivity
of C, with A the matrix of prefix sums. It is computed from the matrices.
"""

from __future__ import annotations

import argparse

import numpy as np

from fedmos.privacy.matrix_factorization import coefficients, sensitivity


def error(bands: int, rounds: int, separation: int) -> float:
    """Return the root-mean-square error of prefix sums at a noise multiplier of one."""
    c = np.array(coefficients(bands))[:rounds]
    inverse = np.zeros(rounds)
    inverse[0] = 1
    for t in range(1, rounds):
        most = min(len(c) - 1, t)
        inverse[t] = -(c[1 : most + 1] * inverse[t - 1 :: -1][:most]).sum()
    squares = np.cumsum(np.cumsum(inverse) ** 2)
    return float(np.sqrt(squares.mean())) * sensitivity(bands, rounds, separation, -(-rounds // separation))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--bands", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--separation", type=int, nargs="+", default=[1, 5, 20, 100])
    given = parser.parse_args()
    for separation in given.separation:
        independent = error(1, given.rounds, separation)
        shares = [f"{error(bands, given.rounds, separation) / independent:.2f}" for bands in given.bands]
        print(f"{separation}: {' '.join(shares)}")


if __name__ == "__main__":
    main()
