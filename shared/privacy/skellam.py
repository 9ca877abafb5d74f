"""The accountant of the Skellam mechanism: the devices of a masked group add noise, and only their sum is visible.

A device sends whole numbers with an L2 norm of at most `steps`. The noise on the sum of a group has at least the variance
(noise_multiplier * steps)^2 on each value. It is the difference of two Poisson numbers, so the sum of the devices' noise is of
the same kind. The bound is that of Agarwal, Kairouz and Liu 2021, "The Skellam Mechanism for Differentially Private
Federated Learning", Corollary 3.6: for a variance v, sensitivities l1 and l2, and each whole order a of at least 2, one release
has a Renyi divergence of at most

    a * l2^2 / (2 v)  +  min(((2 a - 1) * l2^2 + 6 * l1) / (4 v^2), 3 * l1 / (2 v))

Here l2 = steps, and l1 = steps^2, which bounds the L1 norm of any whole numbers with that L2 norm; so no number of values is
needed. Divergences of rounds add up (Mironov 2017, "Renyi Differential Privacy", Proposition 1); those of Gaussian rounds,
a / (2 z^2), add to them. Epsilon follows by Proposition 12 of Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for
Differential Privacy". This bound is not tight: at epsilon 8 it needs 6 % more noise than the closed form of the Gaussian.

Example:
    >>> round(epsilon_of_releases({Release(1.7, steps=500): 7}, delta=1e-5), 2)
    7.93
    >>> round(skellam_noise_for(epsilon=8.0, delta=1e-5, rounds=7, steps=500), 2)
    1.69
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedpatch.shared.privacy.gaussian import MAX_EPSILON, bisect, compose, epsilon_of, mu_of

ORDERS = (*range(2, 129), *(round(128 * 1.05**power) for power in range(1, 101)))
"""Orders of the divergence. A strong epsilon, or much noise, needs the high ones."""

_MOST_NOISE = 1e6
_LONGEST_SUM = 2**15 - 1
_TAIL = 9.0
"""Room of a sum for noise, in units of noise_multiplier * steps: six standard deviations, times the root of (size of the
largest group / its threshold). This ratio is below 2."""


@dataclass(frozen=True, order=True)
class Release:
    """The noise of a release.

    Attributes:
        noise_multiplier: Standard deviation of the noise on each value of the sum, over the clip.
        steps: The clip in steps of the grid, for Skellam noise; 0 for Gaussian noise.
    """

    noise_multiplier: float
    steps: int = 0


@dataclass(frozen=True)
class SkellamNoise:
    """The share of the noise that one device adds to its vector.

    Attributes:
        seed: 32 secret bytes, which no other device and no coordinator knows.
        variance: Variance on each value, in squared steps of the grid.
    """

    seed: bytes = field(repr=False)
    variance: float


def divergence(release: Release, order: int) -> float:
    """Return the bound on the Renyi divergence of one release, infinity for noise near 0; the order is at least 2."""
    variance = release.noise_multiplier**2
    if not (variance**2):
        return math.inf
    gaussian = order / (2 * variance)
    if not release.steps:
        return gaussian
    return gaussian + min((2 * order + 5) / (4 * variance**2 * release.steps**2), 3 / (2 * variance))


def epsilon_of_releases(releases: Mapping[Release, int], delta: float) -> float:
    """Return the epsilon of all releases together, also if each was chosen after the previous ones.

    Args:
        releases: Number of rounds with each noise.
        delta: Above 0, below 1.

    Returns:
        Gaussian rounds alone: the exact one. With Skellam noise: the bound above. Infinity beyond MAX_EPSILON.
    """
    counted = {release: rounds for release, rounds in releases.items() if rounds}
    if not any(release.steps for release in counted):
        return epsilon_of(compose(mu_of(one.noise_multiplier, rounds) for one, rounds in counted.items()), delta)
    found = min(
        epsilon_of_divergence(
            order, math.fsum(rounds * divergence(release, order) for release, rounds in counted.items()), delta
        )
        for order in ORDERS
    )
    return found if found <= MAX_EPSILON else math.inf


def epsilon_of_divergence(order: int, bound: float, delta: float) -> float:
    """Return an epsilon that a Renyi divergence keeps.

    Args:
        order: Order of the divergence, at least 2.
        bound: Greatest divergence of that order.
        delta: Above 0, below 1.
    """
    return max(0.0, bound + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def skellam_noise_for(epsilon: float, delta: float, rounds: int, steps: int) -> float:
    """Return the least noise multiplier of a device that takes part in all of `rounds` rounds.

    Args:
        epsilon: Above 0.
        delta: Above 0, below 1.
        rounds: At least 1.
        steps: The clip in steps of the grid, at least 1.

    Raises:
        ValueError: No noise of less than a million keeps this epsilon.
    """

    def keeps(noise_multiplier: float) -> bool:
        return epsilon_of_releases({Release(noise_multiplier, steps): rounds}, delta) <= epsilon

    if not keeps(_MOST_NOISE):
        raise ValueError(f"no noise multiplier below {_MOST_NOISE:g} keeps epsilon {epsilon} at delta {delta}")
    return bisect(keeps, 0.0, _MOST_NOISE)


def steps_of(noise_multiplier: float, group_max: int) -> int:
    """Return the clip in steps of the finest grid on which the sum of a group with its noise fits 16 bits.

    The sum of the clips of all members fits together with six standard deviations of noise. A sum that does not fit costs
    accuracy, never privacy: its remainder reveals no more than the sum.

    Args:
        noise_multiplier: Standard deviation of the noise on the sum of the least group that opens, over the clip.
        group_max: Devices in the largest group.

    Example:
        >>> steps_of(1.72, group_max=39), steps_of(500.0, group_max=39)
        (601, 7)
    """
    return int(_LONGEST_SUM / (group_max + _TAIL * noise_multiplier))
