"""Σ_i Var(w_i), the total variance of the aggregation weights, of Uniform, MD and ACS."""

import torch

import fedmos as fm
from fedmos.rng import Purpose, generator

N, M = 500, 25
n = torch.from_numpy(generator(0, Purpose.PARTITION).integers(10, 51, N)).double()
power_law = 1 / torch.arange(1, N + 1, dtype=torch.float64)

for label, weight in (("n_i ~ U{10…50}", n), ("p_i ∝ 1/i", power_law)):
    p = weight / weight.sum()
    totals = {
        type(s).__name__: fm.analysis.sampling_variance(s, p).total for s in (fm.Uniform(m=M), fm.MD(m=M), fm.ACS(m=M))
    }
    print(label, {name: round(total, 4) for name, total in totals.items()})
