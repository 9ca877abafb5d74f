"""The aggregate of a round: its updates, each clipped to the bounds of the run, put together by the rule of the run.

Updates are read one at a time in the order of device names, so that memory is one model and equal updates give equal bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpatch.coordinator.aggregation.aggregate_result import AggregateResult
from fedpatch.coordinator.aggregation.clipped_updates import ClippedUpdates
from fedpatch.coordinator.aggregation.cohort_norms import CohortNorms, measure_cohort
from fedpatch.coordinator.aggregation.fixed_values import FixedValues
from fedpatch.coordinator.aggregation.limit_syntax import AggregateRule, Limits
from fedpatch.coordinator.aggregation.norm_limits import needs_cohort, norm_limits
from fedpatch.coordinator.aggregation.reference_norms import remembered
from fedpatch.coordinator.aggregation.robust_rules import (
    Changes,
    RuleResult,
    Scratch,
    clip_centred,
    trim,
)
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.coordinator.aggregation.update_norms import weights_norm
from fedpatch.coordinator.aggregation.weighed_updates import WeighedUpdates, weigh
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean, stored
from fedpatch.shared.tensors.arrays import Array, Schema


def _in_memory(shape: tuple[int, int]) -> Array:
    return np.empty(shape, np.float32)


def aggregate(updates: RoundUpdates, base: RoundBase, limits: Limits, scratch: Scratch = _in_memory) -> AggregateResult:
    """Aggregate the updates of a round.

    Where a bound is a multiple of the reference, a first pass measures all updates (`cohort_norms`). If one of them is beyond
    its bound, all are read once more for the mean. The robust rules read them several times.

    Args:
        base: The model that they were trained from.
        limits: The bounds and the rule of the run.
        scratch: Makes the table of all values that the rule "trimmed" needs.

    Returns:
        The mean, and the updates that were bounded.

    Raises:
        ValueError: There is no device.
    """
    schema, rule = base.schema, limits.rule
    fixed = FixedValues.of(base.tensors, schema)
    weighed = weigh(updates, base, limits.examples, fixed)
    count = len(weighed.weights)
    alone = count == 1 and not base.references
    summed = WeightedMean(schema, weighed.base) if rule.name == "mean" else None
    cohort = CohortNorms()
    if needs_cohort(schema, limits.norm):
        cohort = measure_cohort(weighed, base.references, summed)
    most = norm_limits(
        cohort.references, limits.norm, alone=alone, base_norm=weights_norm(weighed.base, schema) if alone else 0.0
    )
    clipped = ClippedUpdates(weighed, most if limits.norm.action != "off" else None, cohort.norms)
    shares: Mapping[str, float] = {}
    if summed is None:
        mean, shares = _aggregate_robustly(weighed, clipped, rule, scratch)
    elif cohort.norms and clipped.all_within():
        mean = summed.result()
    else:
        mean = _mean_of(weighed, clipped, schema, weighed.factors)
    beyond = {device: times for device, times in clipped.clipped.items() if times}
    return AggregateResult(
        fixed.restored({spec.name: mean[spec.name] for spec in schema.specs}),
        beyond,
        weighed.capped,
        remembered(cohort.references, most, base.references, count),
        _pulls(weighed, beyond, shares),
        count,
    )


def _aggregate_robustly(
    weighed: WeighedUpdates, clipped: ClippedUpdates, rule: AggregateRule, scratch: Scratch
) -> tuple[dict[str, Array], Mapping[str, float]]:
    """Return the aggregate by a robust rule, and the share of each update that counts.

    The rule is for trained tensors. The others are averaged, each update with its share.
    """
    base, schema = weighed.base, weighed.schema
    found = _apply_rule(rule, Changes(weighed.examples, clipped.read, base, schema), scratch)
    moved = {
        spec.name: stored(base[spec.name] + found.step[spec.name], spec) for spec in schema.specs if spec.trainable
    }
    rest = schema.subset(set(schema.names) - set(moved))
    return moved | _mean_of(weighed, clipped, rest, found.shares), found.shares


def _apply_rule(rule: AggregateRule, changes: Changes, scratch: Scratch) -> RuleResult:
    if rule.name == "centred":
        return clip_centred(changes, rule.radius)
    return trim(changes, rule.beta, scratch)


def _mean_of(
    weighed: WeighedUpdates, clipped: ClippedUpdates, schema: Schema, factors: Mapping[str, float]
) -> dict[str, Array]:
    """Return the weighted mean of the tensors of `schema`, each weight times its factor."""
    if not schema.specs:
        return {}
    mean = WeightedMean(schema, weighed.base)
    for device, weight in weighed.weights.items():
        tensors = clipped.read(device)
        mean.add({name: tensors[name] for name in schema.names}, weight, factors[device])
    return mean.result()


def _pulls(
    weighed: WeighedUpdates, beyond: Mapping[str, Mapping[str, float]], shares: Mapping[str, float]
) -> dict[str, float]:
    """Return the share of the change that bounds and rule took away, by device whose update does not count whole."""
    norm_factors = {device: max(1.0, times.get("weights", 1.0)) for device, times in beyond.items()}
    pulls = {device: 1.0 - shares.get(device, 1.0) / norm_factors.get(device, 1.0) for device in weighed.weights}
    return {device: pull for device, pull in pulls.items() if pull > 0}
