"""Sums of groups: from unmasked elements to the mean step and to the figures of a round.

Sums are integers, so groups may be added in any order, and a relay's partial sums give the same bits as one sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.masking.device_vector import MEASURE_OFFSET, MEASURE_STEPS, RATIO_STEPS
from fedpatch.shared.masking.vector_layout import BINS, LIMB_BITS, MEASURES, VectorLayout, from_limbs, to_limbs
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.field_types import MAX_MEASURE
from fedpatch.shared.wire.reason_codes import RefuseReason


@dataclass(frozen=True)
class GroupSum:
    """The sum of some devices' vectors, or of the sums of some groups.

    Attributes:
        devices: Number of devices.
        codes: Sum of each value, int64, shape (layout.num_values,).
        figures: Sum of each figure, in the order of `layout.figures`.
    """

    devices: int
    codes: Array
    figures: tuple[int, ...]

    def __add__(self, other: GroupSum) -> GroupSum:
        figures = tuple(map(sum, zip(self.figures, other.figures, strict=True)))
        return GroupSum(self.devices + other.devices, self.codes + other.codes, figures)


@dataclass(frozen=True)
class SummedReport:
    """Sums of a masked round in place of its devices' reports. A mean is None where no device measured it.

    Attributes:
        devices: Number of devices.
        weight: Sum of their weights, in examples.
        num_examples: Sum of their weight classes (shared.masking.device_vector), not capped.
        means: Mean of each of MEASURES.
        measured: Number of devices that measured it.
        gaining: Devices that gain against learning alone.
        losing: Devices that lose.
        histogram: Devices in each of 16 bins of user accuracy before training, over the range of the metric.
        clipped_values: Values that were cut off at the grid's range.
        norm: Mean L2 norm of a device's step in units of the clip; a single norm counts at most fourfold.
        spreads: Root mean square of each tensor's values in units of its range, mean over the devices, in the order of names.
    """

    devices: int
    weight: int
    num_examples: int
    means: dict[str, float | None]
    measured: dict[str, int]
    gaining: int
    losing: int
    histogram: tuple[int, ...]
    clipped_values: int
    norm: float
    spreads: tuple[float, ...]

    def worst_tenth(self, metric: MetricTerms) -> float | None:
        """Return the bound of the worst tenth of user accuracies, to the middle of its bin; None without a histogram."""
        counted = sum(self.histogram)
        if not counted:
            return None
        worst_first = list(range(BINS)) if metric.goal == "max" else list(reversed(range(BINS)))
        left = math.ceil(counted / 10)
        for place in worst_first:
            left -= self.histogram[place]
            if left <= 0:
                break
        return metric.least + (place + 0.5) / BINS * (metric.most - metric.least)


def read_sum(layout: VectorLayout, elements: Array, devices: int) -> GroupSum:
    """Read the unmasked sum of a group.

    Args:
        elements: Sum of the vectors modulo 2^bits, shape (layout.size,).
        devices: Number of vectors in the sum.

    Returns:
        Sums of values and figures.
    """
    signed = elements[: layout.num_values].view(f"<i{layout.dtype.itemsize}").astype(np.int64)
    limbs = elements[layout.num_values :].tolist()
    figures, start = [], 0
    for _, bits in layout.figures:
        figures.append(from_limbs(limbs[start : start + bits // LIMB_BITS]))
        start += bits // LIMB_BITS
    return GroupSum(devices, signed, tuple(figures))


def sum_of_groups(sums: Iterable[GroupSum]) -> GroupSum:
    """Return the sum of at least one group."""
    first, *rest = sums
    for one in rest:
        first = first + one
    return first


def mean_step(layout: VectorLayout, total: GroupSum) -> dict[str, Array]:
    """Return the mean of the devices' steps, weighted by examples up to the cap.

    Args:
        total: Sum of all groups.

    Returns:
        Steps by tensor, float64.

    Raises:
        UpdateRefused: No device of the sum has any weight.
    """
    weight = total.figures[0]
    if weight < 1:
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, f"the sum of {total.devices} devices has the weight {weight}")
    steps, start = {}, 0
    for spec, scale, count in zip(layout.specs, layout.ranges, layout.counts, strict=True):
        codes = total.codes[start : start + count]
        steps[spec.name] = (codes * (scale / layout.top * layout.terms.weight_cap / weight)).reshape(spec.shape)
        start += count
    return steps


def read_report(layout: VectorLayout, total: GroupSum) -> SummedReport:
    """Return the figures of a round."""
    figures = {name: value for (name, _), value in zip(layout.figures, total.figures, strict=True)}
    measured = {name: figures[f"{name}_measured"] for name in MEASURES}
    means = {name: _mean(figures[name], measured[name]) for name in MEASURES}
    devices = max(total.devices, 1)
    return SummedReport(
        devices=total.devices,
        weight=figures["weight"],
        num_examples=figures["num_examples"],
        means=means,
        measured=measured,
        gaining=figures["gaining"],
        losing=figures["losing"],
        histogram=tuple(figures[f"bin_{place}"] for place in range(BINS)),
        clipped_values=figures["clipped_values"],
        norm=figures["norm"] / RATIO_STEPS / devices,
        spreads=tuple(figures[f"spread {spec.name}"] / RATIO_STEPS / devices for spec in layout.specs),
    )


def has_possible_measures(layout: VectorLayout, total: GroupSum, metric: MetricTerms) -> bool:
    """Return whether honest devices can have these sums of measures: each in the range of its measure, times its devices.

    Args:
        total: Sum of a group, or of a site.
    """
    figures = {name: value for (name, _), value in zip(layout.figures, total.figures, strict=True)}
    width = metric.most - metric.least
    ranges = dict.fromkeys(MEASURES, (metric.least, metric.most))
    ranges |= {"train_loss": (-MAX_MEASURE, MAX_MEASURE), "gain": (-width, width), "gain_after": (-width, width)}
    for name, bits in layout.figures:
        if name in ranges:
            # Encoded as a device encodes its value, so that the bounds hold to the last bit.
            least, most = (
                from_limbs(to_limbs(round((one + MEASURE_OFFSET) * MEASURE_STEPS), bits)) for one in ranges[name]
            )
            count = figures[f"{name}_measured"]
            if not least * count <= figures[name] <= most * count:
                return False
    return True


def _mean(total: int, count: int) -> float | None:
    return total / MEASURE_STEPS / count - MEASURE_OFFSET if count else None
