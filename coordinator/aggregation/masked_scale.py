"""The public scale of a masked run: the range of each tensor's values, and the clip, both derived from earlier sums."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.shared.masking.group_sum import SummedReport
from fedpatch.shared.masking.ranges import first_clip, first_ranges, next_clip, next_ranges
from fedpatch.shared.tensors.arrays import Schema, Tensors


@dataclass(frozen=True)
class MaskedScale:
    """The scale of a round.

    Attributes:
        ranges: Range of the values of each travelling tensor of floating-point numbers, in the order of names.
        clip: Greatest L2 norm of a device's step.

    Example:
        >>> MaskedScale((0.5, 0.25), clip=1.0).ranges
        (0.5, 0.25)
    """

    ranges: tuple[float, ...]
    clip: float

    @classmethod
    def first(cls, schema: Schema, model: Tensors) -> MaskedScale:
        """Return the scale of a run's first round, by the values of its model."""
        ranges = first_ranges(schema, model)
        return cls(ranges, first_clip(schema, ranges))

    def after(self, report: SummedReport) -> MaskedScale:
        """Return the scale of the next round, after a round with this scale and these sums."""
        return MaskedScale(next_ranges(self.ranges, report), next_clip(self.clip, report))
