"""The first pass over the updates of a round, where a bound is a multiple of the reference: the norms of all updates.

If the rule is the mean, the unchanged updates are summed in the same pass: in most rounds no update is beyond its bound, and
then no second pass is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedpatch.coordinator.aggregation.reference_norms import References, references
from fedpatch.coordinator.aggregation.update_norms import Part, exact_squares, measured_from, norms, norms_of
from fedpatch.coordinator.aggregation.weighed_updates import WeighedUpdates
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean


@dataclass(frozen=True)
class CohortNorms:
    """The norms of a round's updates.

    Attributes:
        norms: By device and part.
        references: The reference of each part in this round.
    """

    norms: Mapping[str, Mapping[Part, float]] = field(default_factory=dict)
    references: Mapping[Part, float] = field(default_factory=dict)


def measure_cohort(updates: WeighedUpdates, past: References, mean: WeightedMean | None = None) -> CohortNorms:
    """Measure all updates, each read once.

    Args:
        past: References of earlier rounds.
        mean: Takes the unchanged updates; None: they are only measured.
    """
    found = _measure(updates) if mean is None else _measure_and_add(updates, mean)
    cohort = {device: pace.per_unit(found[device]) for device, pace in updates.paces.items()}
    return CohortNorms(found, references(cohort, past))


def _measure(updates: WeighedUpdates) -> dict[str, dict[Part, float]]:
    base, schema = updates.base, updates.schema
    return {
        device: norms(updates.read(device), pace.origin(base, schema), schema) for device, pace in updates.paces.items()
    }


def _measure_and_add(updates: WeighedUpdates, mean: WeightedMean) -> dict[str, dict[Part, float]]:
    base, schema = updates.base, updates.schema
    found, fixed = {}, measured_from(base, schema)
    for device, pace in updates.paces.items():
        origins = pace.origin(base, schema) | fixed
        tensors = updates.read(device)
        squares = mean.add_measured(tensors, updates.weights[device], updates.factors[device], origins=origins)
        found[device] = norms_of(squares | exact_squares(tensors, base, schema), schema)
    return found
