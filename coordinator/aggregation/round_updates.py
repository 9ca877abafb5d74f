"""The input of an aggregation: the updates of a round that count, and the model that they were trained from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedpatch.coordinator.aggregation.rebased_updates import Staleness
from fedpatch.coordinator.aggregation.reference_norms import References
from fedpatch.shared.tensors.arrays import Schema, Tensors
from fedpatch.shared.wire.messages import TrainPlan

Read = Callable[[str], Tensors]


@dataclass(frozen=True)
class RoundUpdates:
    """The updates of a round that count.

    Attributes:
        num_examples: Reported examples by device.
        read: Reads the tensors of a device's update.
        stale: The age of each update whose base is an earlier model. Only the rule "mean" takes such updates.
        members: Number of devices whose mean an update is, by device, if more than one.
        alike: Whether each update weighs the same; otherwise an update weighs its examples.
    """

    num_examples: Mapping[str, int]
    read: Read
    stale: Mapping[str, Staleness] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)
    alike: bool = False


@dataclass(frozen=True)
class RoundBase:
    """The model and the plan of a round.

    Attributes:
        schema: Names, shapes and dtypes of the tensors that travel.
        tensors: The global model that the updates were trained on.
        plan: The training plan, whose steps bound counters.
        references: References of earlier rounds; none in the first round.
    """

    schema: Schema
    tensors: Tensors
    plan: TrainPlan
    references: References = field(default_factory=dict)
