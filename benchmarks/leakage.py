"""What models and updates reveal, with and without privacy, on digits.

    python benchmarks/leakage.py            # both tables of docs/privacy.md

Exposure: 20 samples with a wrong label, four times each among the samples of 20 of 100 clients, 60 rounds of FedAvg
with a perceptron. Means over seeds; of p-values, the median. Inversion: one step of one client on one or four samples,
means over three clients.
"""

from __future__ import annotations

import argparse
import logging
from statistics import mean, median

import fedmos as fm

COMMON = {"clip": 0.5, "delta": 1e-3}
MECHANISMS = {
    "none": None,
    "clipping alone": fm.privacy.Gaussian(noise_multiplier=0.0, **COMMON),
    "Gaussian, z = 0.5": fm.privacy.Gaussian(noise_multiplier=0.5, **COMMON),
    "Gaussian, z = 1": fm.privacy.Gaussian(noise_multiplier=1.0, **COMMON),
    "Gaussian, z = 3": fm.privacy.Gaussian(noise_multiplier=3.0, **COMMON),
    "MatrixFactorization, z = 3": fm.privacy.MatrixFactorization(noise_multiplier=3.0, bands=4, **COMMON),
    "Local, z = 1": fm.privacy.Local(noise_multiplier=1.0, **COMMON),
}
HOW = {"rounds": 60, "local_steps": 10, "batch_size": 8, "eval_every": 60, "device": "cpu"}


def exposure(data: fm.FederatedData, privacy: object, seeds: int) -> str:
    """Return a row: accuracy, ε, exposure, AUC, p-value, AUC of training samples."""
    found = []
    for seed in range(seeds):
        canaries = fm.leakage.Canaries(20, references=300, copies=4, seed=seed)
        correlated = isinstance(privacy, fm.privacy.MatrixFactorization)
        selection = fm.Cyclic(m=25) if correlated else fm.Bernoulli(rate=0.25)
        model = fm.models.mlp(features=64, seed=seed)
        result = fm.run(model, canaries.plant(data), fm.FedAvg(lr=0.3), selection, privacy=privacy, seed=seed, **HOW)
        seen, own = canaries.exposure(result, data), fm.leakage.membership(result, data)
        found.append((result.history[-1].accuracy, seen.mean, seen.auc, own.auc, seen.p_value))
        epsilon = result.history[-1].epsilon
    accuracy, bits, auc, members, _ = (mean(column) for column in zip(*found, strict=True))
    p_value = median(row[-1] for row in found)
    spent = "∞" if epsilon is None else f"{epsilon:.3g}"
    return f"{100 * accuracy:.1f} | {spent} | {bits:.2f} | {auc:.2f} | {p_value:.1g} | {members:.2f}"


def inversion(data: fm.FederatedData, noise: float | None) -> str:
    """Return a row: correlations of reconstructions, by model and number of samples."""
    privacy = None if noise is None else fm.privacy.Gaussian(noise_multiplier=noise, **COMMON)
    models = (fm.models.logistic(features=64), fm.models.mlp(features=64), fm.models.cnn_digits())
    found = [
        mean(
            fm.leakage.gradient_inversion(
                model, data, fm.FedAvg(lr=0.1), client=client, samples=samples, privacy=privacy, device="cpu"
            ).correlation
            for client in range(3)
        )
        for model in models
        for samples in (1, 4)
    ]
    return " | ".join(f"{v:.2f}" for v in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=100, seed=0)
    for name, privacy in MECHANISMS.items():
        print(f"| {name} | {exposure(data, privacy, given.seeds)} |", flush=True)
    for noise in (None, 0.01, 0.1, 1.0):
        print(f"| {'none' if noise is None else f'z = {noise:g}'} | {inversion(data, noise)} |", flush=True)


if __name__ == "__main__":
    main()
