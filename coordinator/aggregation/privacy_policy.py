"""The terms of differential privacy of a run, and the settings and models that do not fit them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from fedpatch.shared.errors import UsageError
from fedpatch.shared.privacy.skellam import Release, epsilon_of_releases, steps_of
from fedpatch.shared.tensors.schema import Schema, listing
from fedpatch.shared.wire.privacy_messages import GAUSSIAN, SKELLAM, PrivacyTerms

OFF, CENTRAL, DISTRIBUTED = MECHANISMS = ("off", "central", "distributed")
"""Values of the setting `dp`."""

LEAST_STEPS = 16
"""With a clip of fewer grid steps, the rounding itself would be noise."""

Problem = tuple[str, ...]
"""A setting, the reason to refuse it, and the other settings that the reason is about."""


@dataclass(frozen=True)
class PrivacyPolicy:
    """The terms of differential privacy of a run.

    Attributes:
        noise_multiplier: Standard deviation of the noise on each value of the sum, divided by `clip`.
        clip: Greatest L2 norm of an update's change over all public values.
        delta: The delta for which epsilon is reported.
        max_epsilon: Epsilon beyond which the run releases nothing; None for no limit.
        steps: The clip in steps of the grid, where the devices add the noise; 0 where the coordinator does.

    Example:
        >>> policy = PrivacyPolicy(noise_multiplier=1.6, clip=0.5)
        >>> round(policy.epsilon(rounds=7), 2)
        7.93
    """

    noise_multiplier: float
    clip: float
    delta: float = 1e-5
    max_epsilon: float | None = None
    steps: int = 0

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of a device whose updates are in `rounds` releases."""
        return epsilon_of_releases({Release(self.noise_multiplier, self.steps): rounds}, self.delta)

    def terms(self, denominator: int) -> PrivacyTerms:
        """Return the terms of a round that is meant for `denominator` devices."""
        mechanism = SKELLAM if self.steps else GAUSSIAN
        return PrivacyTerms(mechanism, self.noise_multiplier, self.clip, self.delta, denominator, self.steps)


def policy_of(
    dp: str,
    noise_multiplier: float | None,
    dp_clip: float | None,
    delta: float,
    max_epsilon: float | None,
    group_max: int = 0,
) -> PrivacyPolicy | None:
    """Return the policy of checked settings; None if `dp` is off.

    Args:
        dp: One of MECHANISMS.
        noise_multiplier: Not None unless `dp` is off.
        dp_clip: Not None unless `dp` is off.
        delta: Above 0, below 1.
        max_epsilon: None for no limit.
        group_max: Devices in the largest masked group; needed where `dp` is distributed.
    """
    if dp == OFF:
        return None
    assert noise_multiplier is not None and dp_clip is not None, "checked by settings_problems"
    steps = steps_of(noise_multiplier, group_max) if dp == DISTRIBUTED else 0
    return PrivacyPolicy(noise_multiplier, dp_clip, delta, max_epsilon, steps)


def delta_problem(delta: float, devices: int) -> str:
    """Return why a delta means nothing in a fleet of so many devices, with the remedy; "" if it is small enough."""
    if delta * devices < 1:
        return ""
    small = f"less than 1 / devices, e.g. {0.1 / devices:.0e}"
    return f"{delta:g} lets one of {devices} devices be published whole; make it {small}"


def settings_problems(  # noqa: PLR0913  (the settings that depend on each other)
    *,
    dp: str,
    noise_multiplier: float | None,
    dp_clip: float | None,
    delta: float,
    max_epsilon: float | None,
    rounds: int,
    devices: int,
    target_ua: float | None,
    moments: Collection[str],
    aggregate: str = "mean",
    secure: bool = False,
    group_max: int = 0,
) -> list[Problem]:
    """Return the problems of settings that do not fit together; the arguments are settings of a run.

    Args:
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
        secure: Whether updates are masked.
        group_max: Devices in the largest masked group.
    """
    given = {"noise_multiplier": noise_multiplier, "dp_clip": dp_clip}
    if dp == OFF:
        unused = {**given, "max_epsilon": max_epsilon}
        return [
            (name, "has no effect with dp = off; set dp = central or distributed, or leave it out", "dp")
            for name, value in unused.items()
            if value is not None
        ]
    problems: list[Problem] = [
        (name, f"is needed with dp = {dp}; `fedpatch privacy plan` computes the noise", "dp")
        for name, value in given.items()
        if value is None
    ]
    if target_ua is not None:
        text = f"ends the run by raw user accuracies, which dp = {dp} does not release; set none, --rounds ends the run"
        problems.append(("target_ua", text, "dp"))
    if moments:
        text = (
            "shares the optimizer's moments or control variates, which have another scale than the clip, and noise would make "
            "second moments negative; use fedavg or fedadam"
        )
        problems.append(("strategy", text, "dp"))
    if aggregate != "mean":
        text = f"{aggregate} depends on single updates in a way that the clip does not bound; use mean with dp = {dp}"
        problems.append(("aggregate", text, "dp"))
    if text := delta_problem(delta, devices):
        problems.append(("delta", text, "devices"))
    if dp == DISTRIBUTED and not secure:
        text = "distributed adds noise on the devices, which hides an update only in the sum of a group; set secure = groups"
        problems.append(("dp", text, "secure"))
    elif noise_multiplier is not None:
        policy = policy_of(dp, noise_multiplier, 1.0, delta, max_epsilon, group_max)
        assert policy is not None
        problems += _too_noisy(policy) if dp == DISTRIBUTED else []
        problems += _beyond(policy, rounds, dp) if max_epsilon is not None else []
    return problems


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


def check_public(public: Schema) -> None:
    """Raise UsageError for public tensors that no clip covers: noise would break them, or they would travel without noise."""
    tracked = [spec.name for spec in public.specs if not spec.trainable or not spec.dtype.startswith("float")]
    if tracked:
        raise UsageError(
            f"dp: {listing(tracked)} would travel, and is tracked or counted instead of trained, so that noise would break it; "
            "keep it on the devices with --private all, or as one of names:GLOB,..."
        )
