"""The accountant of the Gaussian mechanism: closed form, no library.

A round releases the sum of the devices' clipped updates (L2 norm at most `clip`) with Gaussian noise of standard deviation
`noise_multiplier` * `clip` on each value. That is mu-Gaussian differentially private with mu = 1 / noise_multiplier (Dong,
Roth and Su 2022, "Gaussian Differential Privacy", Theorem 1). After k rounds with the same noise mu is
sqrt(k) / noise_multiplier, with other noise the square root of the sum of squares (Corollary 2). The exact delta is

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon * Phi(-mu / 2 - epsilon / mu)

(Balle and Wang 2018, Theorem 8). The bound is tight: it is no estimate of a moment or a discretised loss.

Two neighbouring fleets differ in all updates of one device: with them, or with zeros in their place ("zero-out" neighbours,
user-level privacy).

No amplification by sampling is claimed, because it needs devices that are drawn by secret random numbers. Here presence,
power, network and the owner's decision limit the draw, the broker sees the invitations, invitations beyond the target prefer
fast devices, and a decline may depend on the owner's habits. So each round in which a device takes part counts in full.

Example:
    >>> round(epsilon_of(mu_of(noise_multiplier=1.6, rounds=7), delta=1e-5), 2)
    7.93
    >>> round(noise_multiplier_for(epsilon=8.0, delta=1e-5, rounds=7), 2)
    1.59
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

MAX_EPSILON = 1e6
"""A greater epsilon is reported as infinite, because it is no useful bound."""

_ASYMPTOTIC = 25.0  # exp(x**2) overflows soon after


def mu_of(noise_multiplier: float, rounds: int = 1) -> float:
    """Return mu after `rounds` rounds with the same noise, 0 for no round; raise ValueError for a noise that is not above 0."""
    if not noise_multiplier > 0:
        raise ValueError(f"noise multiplier {noise_multiplier} must be above 0")
    return math.sqrt(rounds) / noise_multiplier


def compose(mus: Iterable[float]) -> float:
    """Return mu of all these releases together, also if each was chosen after the previous ones."""
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def delta_of(mu: float, epsilon: float) -> float:
    """Return the delta of a mechanism with `mu` at `epsilon` (both at least 0)."""
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # e^epsilon * pdf(high) is pdf(low): without this step e^epsilon would overflow.
    density = math.exp(-low * low / 2) / math.sqrt(2 * math.pi)
    if low > 0:
        return max(0.0, density * (_mills_ratio(low) - _mills_ratio(high)))
    return max(0.0, math.erfc(low / math.sqrt(2)) / 2 - density * _mills_ratio(high))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon of a mechanism with `mu` at `delta` (above 0, below 1); infinity beyond MAX_EPSILON."""
    _check_delta(delta)
    if delta_of(mu, MAX_EPSILON) > delta:
        return math.inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    return bisect(lambda epsilon: delta_of(mu, epsilon) <= delta, 0.0, MAX_EPSILON)


def mu_for(epsilon: float, delta: float) -> float:
    """Return the largest mu that keeps `epsilon` (above 0) at `delta` (above 0, below 1), rounded down."""
    _check_delta(delta)
    if not 0 < epsilon <= MAX_EPSILON:
        raise ValueError(f"epsilon {epsilon} must be above 0 and at most {MAX_EPSILON:g}")
    top = math.sqrt(2 * epsilon) + 100.0  # delta is 0.5 or more at mu = sqrt(2 epsilon)
    return top - bisect(lambda less: delta_of(top - less, epsilon) <= delta, 0.0, top)


def noise_multiplier_for(epsilon: float, delta: float, rounds: int) -> float:
    """Return the least noise multiplier of a device that takes part in all of `rounds` rounds.

    Args:
        epsilon: Above 0.
        delta: Above 0, below 1.
        rounds: At least 1.

    Raises:
        ValueError: An argument is out of its range.
    """
    if rounds < 1:
        raise ValueError(f"{rounds} rounds must be at least 1")
    return math.sqrt(rounds) / mu_for(epsilon, delta)


def noise_ratio(noise_multiplier: float, values: int, denominator: int) -> float:
    """Return the expected L2 norm of the noise on the mean, over the norm to which an update is clipped.

    Args:
        noise_multiplier: Standard deviation of the noise on the sum, over the clip.
        values: Number of released values.
        denominator: Devices that a round is meant for.

    Example:
        >>> round(noise_ratio(1.59, values=199_210, denominator=10))
        71
    """
    return noise_multiplier * math.sqrt(values) / denominator


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta {delta} must be above 0 and below 1")


def bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least number at which a condition holds.

    Args:
        holds: The condition; it changes once between `low` and `high`.
        low: A number at which it does not hold.
        high: A greater number, at which it holds.

    Example:
        >>> bisect(lambda value: value * value >= 2.0, 0.0, 2.0)
        1.4142135623730951
    """
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _mills_ratio(x: float) -> float:
    """Return the upper tail of the standard normal distribution at `x` over its density; x is at least 0."""
    scaled = x / math.sqrt(2)
    if scaled < _ASYMPTOTIC:
        return math.sqrt(math.pi / 2) * math.exp(scaled * scaled) * math.erfc(scaled)
    square = 1 / (x * x)
    return (1 - square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square)))) / x
