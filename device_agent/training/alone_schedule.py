"""The rounds in which a device trains alone without a request (`alone_every`)."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_ROUNDS = 3
"""Rounds of a run in which each device with a schedule trains alone: a model of one round would protect from little."""


@dataclass(frozen=True)
class AloneSchedule:
    """The rounds in which a device trains alone without a request: the first ones of a run, then one of `every`.

    `every` is 0 for none. The cost is FIRST_ROUNDS more trainings a run and 1 / `every` more steps.

    Example:
        >>> schedule = AloneSchedule(every=10)
        >>> schedule.is_due(steps=15, taken=15, alone=0), schedule.is_due(steps=15, taken=75, alone=45)
        (True, False)
        >>> schedule.is_due(steps=15, taken=150, alone=45)
        True
    """

    every: int

    def is_due(self, *, steps: int, taken: int, alone: int) -> bool:
        """Return whether this round trains alone too.

        Args:
            steps: Steps of the round.
            taken: Steps that the device has taken in all its rounds with this one.
            alone: Steps of the model trained alone in this run.
        """
        if not self.every:
            return False
        return alone < FIRST_ROUNDS * steps or taken // steps % self.every == 0
