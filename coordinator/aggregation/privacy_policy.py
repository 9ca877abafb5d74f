"""The terms of differential privacy of a run."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.shared.errors import UsageError
from fedpatch.shared.privacy.skellam import Release, epsilon_of_releases, steps_of
from fedpatch.shared.tensors.schema import Schema, listing
from fedpatch.shared.wire.privacy_messages import GAUSSIAN, SKELLAM, PrivacyTerms

OFF, CENTRAL, DISTRIBUTED = MECHANISMS = ("off", "central", "distributed")
"""Values of the setting `dp`."""


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
    assert noise_multiplier is not None and dp_clip is not None, "checked by privacy_problems"
    steps = steps_of(noise_multiplier, group_max) if dp == DISTRIBUTED else 0
    return PrivacyPolicy(noise_multiplier, dp_clip, delta, max_epsilon, steps)


def delta_problem(delta: float, devices: int) -> str:
    """Return why a delta means nothing in a fleet of so many devices, with the remedy; "" if it is small enough."""
    if delta * devices < 1:
        return ""
    small = f"less than 1 / devices, e.g. {0.1 / devices:.0e}"
    return f"{delta:g} lets one of {devices} devices be published whole; make it {small}"


def check_public(public: Schema) -> None:
    """Raise UsageError for public tensors that no clip covers: noise would break them, or they would travel without noise."""
    tracked = [spec.name for spec in public.specs if not spec.trainable or not spec.dtype.startswith("float")]
    if tracked:
        raise UsageError(
            f"dp: {listing(tracked)} would travel, and is tracked or counted instead of trained, so that noise would break it; "
            "keep it on the devices with --private all, or as one of names:GLOB,..."
        )
