"""The updates of a round in the order of device names, each with its weight, its staleness and the pace of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.fixed_values import FixedValues
from fedpatch.coordinator.aggregation.limit_syntax import ExamplesCap
from fedpatch.coordinator.aggregation.norm_pace import Pace
from fedpatch.coordinator.aggregation.rebased_updates import Staleness, rebase
from fedpatch.coordinator.aggregation.round_updates import Read, RoundBase, RoundUpdates
from fedpatch.shared.tensors.arrays import Schema, Tensors


@dataclass(frozen=True)
class WeighedUpdates:
    """Updates that can be read again and again. All mappings are in the order of device names.

    Attributes:
        read: Reads an update, moved to the present model, with zeros at the values that never change.
        schema: Names, shapes and dtypes of the tensors that travel.
        base: The global model, with zeros at the values that never change.
        examples: The examples that each update weighs by the cap of the run.
        capped: Those of the updates whose number of examples the cap has lowered.
        weights: The weight of each update in a mean: its examples, or 1.
        factors: The factor of each weight by the staleness of the update.
        paces: The pace of each update.
        alike: Whether each update weighs the same.
    """

    read: Read
    schema: Schema
    base: Tensors
    examples: Mapping[str, int]
    capped: Mapping[str, int]
    weights: Mapping[str, int]
    factors: Mapping[str, float]
    paces: Mapping[str, Pace]
    alike: bool

    def has_excess_steps(self, device: str) -> bool:
        """Return whether an update may have more steps than its weight has: then the cap has lowered this weight."""
        return device in self.capped and not self.alike


def weigh(updates: RoundUpdates, base: RoundBase, cap: ExamplesCap, fixed: FixedValues) -> WeighedUpdates:
    """Order and weigh the updates of a round.

    Args:
        fixed: The values of the base that never change.
    """
    reported = {device: updates.num_examples[device] for device in sorted(updates.num_examples)}
    examples = example_weights(reported, cap, updates.members)
    read = _rebased(updates.read, updates.stale, base.tensors, base.schema) if updates.stale else updates.read
    return WeighedUpdates(
        read=_read_without(fixed, read),
        schema=base.schema,
        base=fixed.without(base.tensors),
        examples=examples,
        capped={device: count for device, count in examples.items() if count < reported[device]},
        weights=dict.fromkeys(examples, 1) if updates.alike else examples,
        factors={device: updates.stale[device].factor if device in updates.stale else 1.0 for device in examples},
        paces={device: Pace.of(base.plan, count, updates.members.get(device, 1)) for device, count in examples.items()},
        alike=updates.alike,
    )


def _read_without(fixed: FixedValues, read: Read) -> Read:
    """Return a reader that leaves out the values that never change."""
    return lambda device: fixed.without(read(device))


def _rebased(read: Read, stale: Mapping[str, Staleness], present: Tensors, schema: Schema) -> Read:
    """Return a reader that moves updates of earlier models to the present one."""

    def moved(device: str) -> Tensors:
        tensors = read(device)
        age = stale.get(device)
        return tensors if age is None or not age.versions else rebase(tensors, age.base, present, schema)

    return moved
