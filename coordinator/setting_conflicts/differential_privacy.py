"""Settings that do not fit differential privacy, or are left without an effect by `dp = off`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from fedpatch.coordinator.aggregation.privacy_policy import DISTRIBUTED, OFF, PrivacyPolicy, delta_problem, policy_of
from fedpatch.coordinator.setting_conflicts.conflict import Conflict, conflicts_of

LEAST_STEPS = 16
"""With a clip of fewer grid steps, the rounding itself would be noise."""

Problem = tuple[str, ...]
"""A setting, the reason to refuse it, and the other settings that the reason is about."""


@dataclass(frozen=True)
class NoiseSettings:
    """The settings that differential privacy depends on, of a study that has no RoundSettings.

    Attributes:
        dp: One of MECHANISMS.
        noise_multiplier: None if it is not set.
        dp_clip: None if it is not set.
        delta: Above 0, below 1.
        max_epsilon: None for no limit.
        rounds: Rounds of the run.
        devices: Least size of the fleet.
        target_ua: None for no target.
        moments: Moments that the strategy shares.
        aggregate: Rule of the aggregate.
        masked: Whether updates are masked.
        largest_group: Devices in the largest masked group.
    """

    dp: str
    noise_multiplier: float | None
    dp_clip: float | None
    delta: float
    max_epsilon: float | None
    rounds: int
    devices: int
    target_ua: float | None
    moments: tuple[str, ...]
    aggregate: str = "mean"
    masked: bool = False
    largest_group: int = 0


def _unused(name: str) -> Conflict:
    text = "has no effect with dp = off; set dp = central or distributed, or leave it out"
    return Conflict(name, ("dp",), lambda s: s.dp == OFF and getattr(s, name) is not None, text)


def _needed(name: str) -> Conflict:
    text = "is needed with dp = {s.dp}; `fedpatch privacy plan` computes the noise"
    return Conflict(name, ("dp",), lambda s: s.dp != OFF and getattr(s, name) is None, text)


WITHOUT_NOISE: Final = tuple(map(_unused, ("noise_multiplier", "dp_clip", "max_epsilon")))
"""Settings that have no effect in a run without differential privacy."""

WITH_NOISE: Final = (
    *map(_needed, ("noise_multiplier", "dp_clip")),
    Conflict(
        "target_ua",
        ("dp",),
        lambda s: s.dp != OFF and s.target_ua is not None,
        "ends the run by raw user accuracies, which dp = {s.dp} does not release; set none, --rounds ends the run",
    ),
    Conflict(
        "strategy",
        ("dp",),
        lambda s: s.dp != OFF and bool(s.moments),
        "shares the optimizer's moments or control variates, which have another scale than the clip, and noise would make "
        "second moments negative; use fedavg or fedadam",
    ),
    Conflict(
        "aggregate",
        ("dp",),
        lambda s: s.dp != OFF and s.aggregate != "mean",
        "{s.aggregate} depends on single updates in a way that the clip does not bound; use mean with dp = {s.dp}",
    ),
)
"""Settings that do not fit a run with differential privacy."""

NOISE_IN_GROUPS: Final = (
    Conflict(
        "dp",
        ("secure",),
        lambda s: s.dp == DISTRIBUTED and not s.masked,
        "distributed adds noise on the devices, which hides an update only in the sum of a group; set secure = groups",
    ),
)
"""Noise of devices in a run without groups."""


def privacy_problems(settings: Any) -> list[Problem]:
    """Return the conflicts of differential privacy, and the problems of numbers that promise too little or cost too much.

    Args:
        settings: RoundSettings or NoiseSettings.
    """
    problems: list[Problem] = conflicts_of(settings, (*WITHOUT_NOISE, *WITH_NOISE))
    if settings.dp == OFF:
        return problems
    if text := delta_problem(settings.delta, settings.devices):
        problems.append(("delta", text, "devices"))
    if unhidden := conflicts_of(settings, NOISE_IN_GROUPS):
        return problems + unhidden
    return problems + _release_problems(settings)


def _release_problems(settings: Any) -> list[Problem]:
    """Return the problems of the noise of a run, unless it is not set."""
    if settings.noise_multiplier is None:
        return []
    dp, max_epsilon = settings.dp, settings.max_epsilon
    policy = policy_of(dp, settings.noise_multiplier, 1.0, settings.delta, max_epsilon, settings.largest_group)
    assert policy is not None
    problems = _too_noisy(policy) if dp == DISTRIBUTED else []
    return problems + (_beyond(policy, settings.rounds, dp) if max_epsilon is not None else [])


def _too_noisy(policy: PrivacyPolicy) -> list[Problem]:
    if policy.steps >= LEAST_STEPS:
        return []
    text = (
        f"{policy.noise_multiplier:g} leaves no room for updates in values of 16 bits; take less noise, or fewer rounds"
    )
    return [("noise_multiplier", text, "dp")]


def _beyond(policy: PrivacyPolicy, rounds: int, dp: str) -> list[Problem]:
    spent = policy.epsilon(rounds)
    assert policy.max_epsilon is not None
    if spent <= policy.max_epsilon:
        return []
    words = f"{spent:.4g}" if math.isfinite(spent) else "no bound at all"
    terms = f"--dp {dp} --epsilon {policy.max_epsilon:g} --delta {policy.delta} --rounds {rounds}"
    text = (
        f"{policy.max_epsilon:g} is less than the epsilon of a device in all {rounds} rounds, {words}; "
        f"`fedpatch privacy plan {terms}` computes the noise that keeps it"
    )
    return [("max_epsilon", text, "noise_multiplier")]
