"""The exact ε of a Gaussian mechanism, computed apart from dp-accounting."""

from __future__ import annotations

import math

from scipy import optimize, stats


def exact_epsilon(noise_multiplier: float, delta: float) -> float:
    """ε such that Φ(1/(2σ) − εσ) − e^ε Φ(−1/(2σ) − εσ) = δ (Balle and Wang, ICML 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        one, other = 0.5 / noise_multiplier - epsilon * noise_multiplier, -0.5 / noise_multiplier
        tail = math.exp(epsilon + stats.norm.logcdf(other - epsilon * noise_multiplier))
        return stats.norm.cdf(one) - tail - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return optimize.brentq(excess, 0.0, high, xtol=1e-13)
