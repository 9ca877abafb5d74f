"""The audit of differential privacy by canaries: from the guesses of an attacker to a lower bound of epsilon."""

from __future__ import annotations

import math
from statistics import NormalDist

from fedpatch.shared.privacy.gaussian import epsilon_of
from fedpatch.shared.tensors.arrays import Array

CONFIDENCE = 0.999


def found_epsilon(guess: Array, present: Array, delta: float) -> float:
    """Return a lower bound of epsilon, true with CONFIDENCE.

    The two error rates of the guesses, bounded by Clopper and Pearson, bound mu of a Gaussian mechanism (Nasr et al. 2023,
    section 4).

    Args:
        guess: Whether the attacker takes each canary for present.
        present: Whether each canary was present.
        delta: The delta of epsilon.
    """
    false_alarms, misses = int((guess & ~present).sum()), int((~guess & present).sum())
    rates = (upper_rate(false_alarms, int((~present).sum())), upper_rate(misses, int(present.sum())))
    mu = -sum(NormalDist().inv_cdf(rate) for rate in rates)
    return epsilon_of(max(0.0, mu), delta)


def upper_rate(errors: int, trials: int) -> float:
    """Return the upper bound of an error rate (Clopper and Pearson 1934), by bisection."""
    low, high = errors / trials, 1.0 - 1e-12
    for _ in range(60):
        middle = (low + high) / 2
        terms = (
            math.exp(
                math.lgamma(trials + 1)
                - math.lgamma(count + 1)
                - math.lgamma(trials - count + 1)
                + count * math.log(middle or 1e-300)
                + (trials - count) * math.log1p(-middle)
            )
            for count in range(errors + 1)
        )
        low, high = (middle, high) if math.fsum(terms) > (1 - CONFIDENCE) / 2 else (low, middle)
    return high
