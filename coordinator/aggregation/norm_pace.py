"""The change of an update that follows from its plan alone: norms are compared per step of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpatch.coordinator.aggregation.update_norms import Part, counts, part_of
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.wire.messages import TrainPlan


@dataclass(frozen=True)
class Pace:
    """The change of an update that follows from the plan alone.

    Attributes:
        steps: Training steps of the device; for a relay, of a member with the mean number of examples.
        decays: The factor by which steps without any gradient multiply a moment, by part.
        most_steps: The most steps that a counter may have counted; for a relay, the steps of a member with all its examples.
    """

    steps: int
    decays: Mapping[Part, float]
    most_steps: int

    @classmethod
    def of(cls, plan: TrainPlan, num_examples: int, members: int = 1) -> Pace:
        """Return the pace of an update.

        Args:
            members: Devices that have these examples; the update is their mean.
        """
        each = max(1, num_examples // members)
        steps = plan.steps_for(each)
        moved = sum(one.steps_for(each, plan.batch_size) for one in plan.parts if one.train != "private")
        decays = {"exp_avg": plan.beta_1**moved, "exp_avg_sq": plan.beta_2**moved}
        return cls(steps, decays, plan.steps_for(num_examples))

    def origin(self, base: Tensors, schema: Schema) -> dict[str, Array]:
        """Return the global model `base` with its moments after the steps of the plan without any gradient.

        The distance from there is a mean of gradients, or of their squares. So no norm depends on the moments of the global
        model: a moment that an attack has increased does not allow a larger increase in the next round.
        """
        moved = dict(base)
        for spec in schema.specs:
            decay = self.decays.get(part_of(spec))
            if decay is not None:
                moved[spec.name] = np.asarray(base[spec.name] * decay)
        return moved

    def unit(self, part: Part) -> float:
        """Return the divisor that makes norms of the part comparable between devices with few and with many steps."""
        if counts(part):
            return float(max(1, self.steps))
        return 1.0 - self.decays.get(part, 1.0) or 1.0

    def per_unit(self, found: Mapping[Part, float]) -> dict[Part, float]:
        """Return norms by part, each divided by its unit."""
        return {part: value / self.unit(part) for part, value in found.items()}
