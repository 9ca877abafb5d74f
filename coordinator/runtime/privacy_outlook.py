"""The line about differential privacy at the start of a run: the epsilon of all rounds, and how loud the noise is."""

from __future__ import annotations

import math

from fedpatch.coordinator.aggregation.gaussian_noise import values_of
from fedpatch.coordinator.masking.masked_groups import group_sizes
from fedpatch.coordinator.runtime.run_preparation import Prepared, privacy_policy, secure_policy
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.privacy.gaussian import noise_ratio
from fedpatch.shared.privacy.plan import MOST_RATIO, spread_of


def privacy_outlook(settings: RunSettings, prepared: Prepared) -> str:
    """Return the epsilon of a device in all rounds, and the ratio of noise and clip for the smallest fleet."""
    spec = privacy_policy(settings)
    assert spec is not None
    devices = max(settings.min_cohort, int(settings.participation * settings.devices))
    ratio = noise_ratio(spec.noise_multiplier, values_of(prepared.travelling), devices)
    if settings.masked:
        secure = secure_policy(settings)
        sizes = group_sizes(max(devices, secure.least), size=secure.size, least=secure.least)
        honest = [(size, threshold_of(secure.threshold, size) - secure.colluders) for size in sizes]
        ratio *= math.sqrt(spread_of(honest))
    verdict = "" if ratio <= MOST_RATIO else "; little or nothing will be learnt unless the fleet is larger"
    epsilon, rounds = spec.epsilon(settings.rounds), settings.rounds
    return (
        f"dp: epsilon {epsilon:.4g} at delta {settings.delta:g} of a device in all {rounds} rounds; "
        f"the noise on the mean is {ratio:.2g} times the clip{verdict}"
    )
