"""Terms of differential privacy in a work request. They name the mechanism and its noise; the device keeps the account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedpatch.shared.wire.field_types import Positive, Word

GAUSSIAN = "gaussian"
"""The coordinator clips each update and adds Gaussian noise once to the sum (fedpatch.shared.privacy.gaussian)."""
SKELLAM = "skellam"
"""Each device clips its update and adds a share of Skellam noise, under masks (fedpatch.shared.privacy.skellam)."""
MAX_STEPS = 2**15 - 1


@dataclass(frozen=True)
class PrivacyTerms:
    """Terms of a round with differential privacy.

    Attributes:
        mechanism: GAUSSIAN or SKELLAM.
        noise_multiplier: Standard deviation of the noise on each value of the sum, over `clip`. With SKELLAM of the sum of as
            many devices as must reveal in a group.
        clip: Greatest L2 norm of an update's change over all public values.
        delta: The delta for which the coordinator reports epsilon.
        denominator: The sum is divided by it: the devices that the round is meant for.
        steps: With SKELLAM the clip in steps of the grid of whole numbers; else 0.
    """

    mechanism: Word
    noise_multiplier: Annotated[float, Meta(gt=0.0, le=1e6)]
    clip: Annotated[float, Meta(gt=0.0, le=1e9)]
    delta: Annotated[float, Meta(gt=0.0, lt=1.0)]
    denominator: Positive
    steps: Annotated[int, Meta(ge=0, le=MAX_STEPS)] = 0
