"""The mean of a masked round: sums of masked updates by group, without their masks, and the resulting step.

Sums are integers, so the order of the devices and the choice of the revealed shares do not change a bit of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from fedpatch.coordinator.aggregation.limit_syntax import AggregateRule
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.aggregation.registered_counts import check_members
from fedpatch.coordinator.aggregation.robust_rules import Changes, clip_centred
from fedpatch.coordinator.aggregation.weighted_mean import stored
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.masking.group_sum import (
    GroupSum,
    SummedReport,
    has_possible_measures,
    mean_step,
    read_report,
    read_sum,
    sum_of_groups,
)
from fedpatch.shared.masking.masked_blob import MaskedUpdate, add_masks, read_masked_blob
from fedpatch.shared.masking.private_vector import PrivateLayout, signed_sum, step_of_sum
from fedpatch.shared.masking.ranges import MAX_CHANGE
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, TensorSpec
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.reason_codes import RefuseReason


@dataclass(frozen=True)
class MaskedMean:
    """The mean of a masked round.

    Attributes:
        mean: The global model plus the weighted mean of the devices' steps, by name; the model itself if no group counts.
        report: The figures that the sums give; None if no group counts.
        left_out: Devices of groups whose sum is impossible for honest devices, sorted.
        pulls: The share of the group's step that was taken away, by device of a group that did not count whole.
    """

    mean: dict[str, Array]
    report: SummedReport | None
    left_out: tuple[str, ...] = ()
    pulls: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PossibleSums:
    """The sums of a round that honest devices can have.

    Attributes:
        possible: Sums by the names of their devices, or by the name of a relay.
        left_out: Devices of the other groups and relays, sorted.
    """

    possible: Mapping[tuple[str, ...], GroupSum]
    left_out: tuple[str, ...]

    @property
    def total(self) -> GroupSum | None:
        """The sum of all groups and relays; None if there is none."""
        return sum_of_groups(self.possible.values()) if self.possible else None


_MEAN = AggregateRule()


def masked_mean(
    groups: Sequence[OpenGroup],
    read: Callable[[str], MaskedUpdate],
    *,
    layout: VectorLayout,
    schema: Schema,
    base: Tensors,
    rule: AggregateRule = _MEAN,
    sites: Mapping[str, GroupSum] | None = None,
    metric: MetricTerms | None = None,
) -> MaskedMean:
    """Return the mean of the open groups of a round, and of the sums of its relays.

    One device can spoil the sum of its group, since no single update can be checked. A group whose figures are impossible is
    left out.

    Args:
        read: Reads the masked update of a device.
        schema: Names, shapes and dtypes of the tensors that travel.
        base: The global model that the updates were trained on.
        rule: The mean, or centred clipping over the groups, each site being one group.
        sites: Sums of sites by the name of their relay.
        metric: Metric of the user accuracies; None: their range is not checked.

    Returns:
        The mean and its figures. Tensors of integers keep the values of `base`, statistics stay 0 or more.
    """
    found = possible_sums(groups, read, layout=layout, sites=sites, metric=metric)
    total, left_out = found.total, found.left_out
    if total is None:
        return MaskedMean(dict(base), None, left_out)
    steps, pulls = mean_step(layout, total), dict[str, float]()
    if rule.name == "centred":
        steps, pulls = _centred_step(layout, found.possible, schema, rule.radius)
    mean = {spec.name: _moved(base[spec.name], steps.get(spec.name), spec) for spec in schema.specs}
    return MaskedMean(mean, read_report(layout, total), left_out, pulls)


def possible_sums(
    groups: Sequence[OpenGroup],
    read: Callable[[str], MaskedUpdate],
    *,
    layout: VectorLayout,
    sites: Mapping[str, GroupSum] | None = None,
    metric: MetricTerms | None = None,
) -> PossibleSums:
    """Return the sums of the open groups and of the sites, without sums that are impossible for honest devices.

    Args:
        read: Reads the masked update of a device.
        sites: Sums of sites by the name of their relay.
        metric: Metric of the user accuracies; None: their range is not checked.
    """
    sums = {
        group.devices: read_sum(layout, add_masks(_masked_sum(group, read, layout), group.masks), len(group.devices))
        for group in groups
    }
    sums |= {(relay,): one for relay, one in (sites or {}).items()}
    possible = {devices: one for devices, one in sums.items() if is_possible(layout, one, metric)}
    left_out = sorted(device for devices in sums.keys() - possible.keys() for device in devices)
    return PossibleSums(possible, tuple(left_out))


def _centred_step(
    layout: VectorLayout, sums: Mapping[tuple[str, ...], GroupSum], schema: Schema, radius: float | None
) -> tuple[dict[str, Array], dict[str, float]]:
    """Return the step of centred clipping over the groups' mean steps, and by device the share taken away.

    A bad device makes its group bad, and the rule bounds the harm of a group (SHARE: Velicheti, Xia and Koyejo 2021, "Secure
    Byzantine-Robust Distributed Learning via Clustering").
    """
    by_name = {devices[0]: one for devices, one in sums.items()}
    changes = Changes(
        {name: one.figures[0] for name, one in by_name.items()},
        lambda name: mean_step(layout, by_name[name]),
        {spec.name: np.zeros(spec.shape) for spec in layout.specs},
        schema.subset({spec.name for spec in layout.specs}),
    )
    found = clip_centred(changes, radius)
    steps = {spec.name: np.zeros(spec.shape) for spec in layout.specs} | found.step
    counted = {name: changes.weights[name] * share for name, share in found.shares.items()}
    whole = math.fsum(counted.values()) or 1.0
    for name, part in counted.items():
        for spec in layout.specs:
            if not spec.trainable:
                steps[spec.name] += mean_step(layout, by_name[name])[spec.name] * (part / whole)
    pulls = {device: 1.0 - found.shares[devices[0]] for devices in sums for device in devices}
    return steps, {device: pull for device, pull in pulls.items() if pull > 0}


def private_masked_mean(
    groups: Sequence[OpenGroup],
    read: Callable[[str], MaskedUpdate],
    *,
    layout: PrivateLayout,
    schema: Schema,
    base: Tensors,
    denominator: int,
) -> dict[str, Array]:
    """Return the global model plus the mean of the devices' clipped steps, with the noise that the devices have added.

    The sum is divided by `denominator`, for any number of devices in it.

    Args:
        groups: Open groups of the round, each with the masks of its sum.
        read: Returns the masked update of a device.
        schema: Schema of the travelling tensors, all of them trained.
        denominator: Devices that the round was meant for.
    """
    total = np.zeros(layout.size, np.int64)
    for group in groups:
        total += signed_sum(add_masks(_masked_sum(group, read, layout), group.masks))
    steps = step_of_sum(layout, total, denominator)
    return {spec.name: _moved(base[spec.name], steps[spec.name], spec) for spec in schema.specs}


def round_layout(schema: Schema, terms: SecureTerms, privacy: PrivacyPolicy | None) -> VectorLayout | PrivateLayout:
    """Return the layout of a round's vectors, with or without noise of the devices.

    Args:
        schema: Schema of the tensors that travel.
        privacy: Terms of differential privacy; None without noise.
    """
    if privacy is None:
        return vector_layout(schema, terms)
    return PrivateLayout(schema, privacy.clip, privacy.steps)


def is_possible(layout: VectorLayout, group: GroupSum, metric: MetricTerms | None = None) -> bool:
    """Return whether honest devices can have this sum: its weight, counts and measures fit the number of devices.

    Args:
        metric: Metric of the user accuracies; None: measures are not checked.
    """
    if metric is not None and not has_possible_measures(layout, group, metric):
        return False
    report = read_report(layout, group)
    counts = (*report.measured.values(), report.gaining, report.losing, sum(report.histogram))
    most = min(group.devices * layout.terms.weight_cap, report.num_examples)
    codes = np.abs(group.codes).max(initial=0) <= group.devices * layout.top
    return bool(codes) and group.devices <= report.weight <= most and max(counts) <= group.devices


@lru_cache(maxsize=2)
def vector_layout(schema: Schema, terms: SecureTerms) -> VectorLayout:
    """Return the layout of a round's vectors; it is computed once for all updates of the round."""
    return VectorLayout(schema, terms)


def check_site_sum(
    total: GroupSum,
    layout: VectorLayout,
    *,
    registered: int | None,
    most: int,
    metric: MetricTerms | None = None,
) -> GroupSum:
    """Check the sum of a site, and return it.

    Args:
        registered: Devices that its relay registered to speak for; None: unknown.
        most: The run's `max_members`.
        metric: Metric of the user accuracies; None: their range is not checked.

    Raises:
        UpdateRefused: The sum is of too few or too many devices, or is impossible for them.
    """
    check_members(total.devices, registered, most)
    least = layout.terms.group_min
    if total.devices < least:
        detail = f"a sum of {total.devices} devices, where a group has at least {least}"
        raise UpdateRefused(RefuseReason.OUT_OF_RANGE, detail)
    largest, bound = int(np.abs(total.codes).max(initial=0)), total.devices * layout.top
    if largest > bound:
        detail = f"a sum of {total.devices} devices has the value {largest}, where at most {bound} is possible"
        raise UpdateRefused(RefuseReason.OUT_OF_RANGE, detail)
    if not is_possible(layout, total):
        raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"no {total.devices} devices can have the figures of the sum")
    if metric is not None and not has_possible_measures(layout, total, metric):
        detail = f"no {total.devices} devices can have its {metric.name}, which is {metric.range_words}"
        raise UpdateRefused(RefuseReason.OTHER_METRIC, detail)
    return total


def check_masked_update(
    blob: bytes, layout: VectorLayout | PrivateLayout, *, context: bytes, base: str
) -> MaskedUpdate:
    """Check the form of a masked update; its values cannot be checked.

    Args:
        context: The context of the device's group.
        base: Digest of the round's global model.

    Raises:
        UpdateRefused: With a RefuseReason.
    """
    update = read_masked_blob(blob, layout)
    if update.context != context:
        raise UpdateRefused(RefuseReason.NOT_INVITED, "the update is masked for another group or another work request")
    if update.base != base:
        detail = f"trained on the global model {update.base[:12]}, this round's is {base[:12]}"
        raise UpdateRefused(RefuseReason.WRONG_BASE, detail)
    return update


def _masked_sum(group: OpenGroup, read: Callable[[str], MaskedUpdate], layout: VectorLayout | PrivateLayout) -> Array:
    """Return the sum of a group's masked vectors modulo 2^bits."""
    total = np.zeros(layout.size, layout.dtype)
    for device in group.devices:
        total += read(device).elements
    return total


def _moved(base: Array, step: Array | None, spec: TensorSpec) -> Array:
    if step is None:
        return base
    mean = base + step
    if spec.never_negative:
        # The grid has no values between its steps: a variance far below the model's would become 0, and each device would
        # divide by epsilon. It follows as fast as ranges do.
        mean = np.maximum(mean, np.asarray(base, np.float64) / MAX_CHANGE)
    return stored(mean, spec)
