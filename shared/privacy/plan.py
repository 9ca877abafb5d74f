"""The outlook of a run with differential privacy before it begins: how much noise, and whether anything will be learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fedpatch.shared.errors import UsageError
from fedpatch.shared.privacy.gaussian import MAX_EPSILON, noise_multiplier_for, noise_ratio
from fedpatch.shared.privacy.skellam import skellam_noise_for, steps_of

MOST_RATIO = 0.5
"""The norm of the noise over the clip above which noise outweighs the mean of the updates, and rounds undo each other."""
GOOD_RATIO = 0.25
"""Half of it: there the measured cost was two points of user accuracy (results/privacy)."""
_MOST = 10**12
_COARSE_STEPS = 16


class Verdict(StrEnum):
    """Expected result of a run."""

    LEARNS = "learns"
    DOUBTFUL = "doubtful"
    LEARNS_NOTHING = "learns_nothing"


@dataclass(frozen=True)
class Plan:
    """The outlook of a run.

    Attributes:
        devices: Devices that each round is meant for.
        parameters: Public values.
        rounds: Rounds in which one device takes part at most.
        epsilon: Of a device in all these rounds.
        delta: Its delta.
        noise_multiplier: Standard deviation of the noise on the sum of the updates, over the clip.
        ratio: Expected L2 norm of the noise on the mean, over the clip.
        spread: Variance of the noise on the sum, over that of one least group (`spread_of`); 0: the noise is central.

    Example:
        >>> plan = make_plan(devices=200, parameters=1_010, rounds=7, epsilon=8.0)
        >>> round(plan.noise_multiplier, 2), round(plan.ratio, 2), plan.verdict.value
        (1.59, 0.25, 'doubtful')
    """

    devices: int
    parameters: int
    rounds: int
    epsilon: float
    delta: float
    noise_multiplier: float
    ratio: float
    spread: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Expectation in words, by `ratio`."""
        if self.ratio > MOST_RATIO:
            return Verdict.LEARNS_NOTHING
        return Verdict.DOUBTFUL if self.ratio > GOOD_RATIO else Verdict.LEARNS

    @property
    def least_devices(self) -> int:
        """The least number of devices with a ratio of at most MOST_RATIO. With masked groups their number grows too."""
        central = self.noise_multiplier * math.sqrt(self.parameters) / MOST_RATIO
        return math.ceil(central**2 * self.spread / self.devices if self.spread else central)

    @property
    def most_parameters(self) -> int:
        """The greatest number of public values with a ratio of at most MOST_RATIO; 0 if there is none."""
        return int((MOST_RATIO * self.devices / self.noise_multiplier) ** 2 / (self.spread or 1.0))

    @property
    def words(self) -> str:
        """The verdict with its remedy, in a sentence."""
        ratio = f"the noise on the mean is {self.ratio:.2g} times the clip"
        if self.verdict is Verdict.LEARNS:
            return f"{ratio}: the model will learn, a little slower than without noise"
        if self.verdict is Verdict.DOUBTFUL:
            return f"{ratio}: the model may learn, and less than without noise; try `fedpatch simulate --dp {self.dp}` first"
        remedy = f"it takes {self.least_devices:,} devices"
        if self.most_parameters:
            remedy += f", or at most {self.most_parameters:,} public values (keep more on the devices with --private)"
        return f"{ratio}: little or nothing will be learnt; {remedy}, or fewer rounds"

    @property
    def dp(self) -> str:
        """The setting `dp` of such a run."""
        return "distributed" if self.spread else "central"

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {
            "devices": self.devices,
            "parameters": self.parameters,
            "rounds": self.rounds,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "ratio": self.ratio,
            "dp": self.dp,
            "verdict": self.verdict.value,
            "least_devices": self.least_devices,
            "most_parameters": self.most_parameters,
        }


def spread_of(groups: Sequence[tuple[int, int]]) -> float:
    """Return the variance of the noise on the sum of masked groups, over that of the least group that opens.

    Each device adds its share of the variance, so that a group that opens has enough; all devices of all groups add it.

    Args:
        groups: Size of each group, and how many devices share the variance: the threshold less the colluders of the terms.

    Example:
        >>> spread_of([(32, 17), (32, 17)]), spread_of([])
        (3.764705882352941, 0)
    """
    return sum(size / shares for size, shares in groups)


def make_plan(
    *,
    devices: int,
    parameters: int,
    rounds: int,
    epsilon: float,
    delta: float = 1e-5,
    groups: Sequence[tuple[int, int]] = (),
    group_max: int = 0,
) -> Plan:
    """Compute the noise that keeps `epsilon`, and the outlook of a run with it.

    Args:
        devices: Devices that each round is meant for, at least 1.
        parameters: Public values, at least 1.
        rounds: Rounds in which one device takes part at most, at least 1.
        epsilon: Above 0.
        delta: Above 0, below 1.
        groups: As for `spread_of`, where the devices add the noise; empty: the coordinator does.
        group_max: Devices in the largest group that the run may form, which its grid has room for; 0: the largest of `groups`.

    Raises:
        UsageError: An argument is out of its range.
    """
    for name, value in (("devices", devices), ("parameters", parameters), ("rounds", rounds)):
        if not 1 <= value <= _MOST:
            raise UsageError(f"--{name}: {value} is not from 1 to {_MOST:,}")
    if not 0 < epsilon <= MAX_EPSILON:
        raise UsageError(f"--epsilon: {epsilon:g} is not above 0 and at most {MAX_EPSILON:,.0f}")
    if not 0 < delta < 1:
        raise UsageError(f"--delta: {delta:g} is not above 0 and below 1; usual is less than 1 / devices, e.g. 1e-5")
    if groups:
        largest = group_max or max(size for size, _ in groups)
        noise_multiplier = _masked(epsilon, delta, rounds, largest)
    else:
        noise_multiplier = noise_multiplier_for(epsilon, delta, rounds)
    # Rounded up to five digits, so that the printed number keeps epsilon too.
    step = 10.0 ** (math.floor(math.log10(noise_multiplier)) - 4)
    noise_multiplier = float(f"{math.ceil(noise_multiplier / step) * step:.5g}")
    spread = spread_of(groups)
    ratio = noise_ratio(noise_multiplier, parameters, devices) * math.sqrt(spread or 1.0)
    return Plan(devices, parameters, rounds, epsilon, delta, noise_multiplier, ratio, spread)


def _masked(epsilon: float, delta: float, rounds: int, group_max: int) -> float:
    """Return the multiplier of noise that the devices add. The grid depends on it, so a coarse grid gives a first estimate."""
    try:
        enough = skellam_noise_for(epsilon, delta, rounds, _COARSE_STEPS)
        return skellam_noise_for(epsilon, delta, rounds, max(1, steps_of(enough, group_max)))
    except ValueError as error:
        raise UsageError(f"--epsilon: {error}") from error
