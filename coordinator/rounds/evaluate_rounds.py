"""Evaluate rounds, in which devices only measure the global model: when the next one is due, and how many there were."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_spec import RunSpec


class EvaluateRounds:
    """Decides when a round is an evaluate round: once after every `evaluate_every` training rounds.

    Args:
        spec: The terms of the run.
        records: The rounds before.

    Attributes:
        number: Evaluate rounds that are over. They have numbers like the others, so training rounds are counted without them.
        ended: Whether this process has ended one; a run without training then is complete.
    """

    def __init__(self, spec: RunSpec, records: Sequence[RoundRecord]) -> None:
        self.number = sum(record.is_evaluation for record in records)
        self.ended = False
        self._spec = spec
        self._ended_last = bool(records) and records[-1].is_evaluation

    def is_next(self, trained: int) -> bool:
        """Return whether the next round is an evaluate round.

        Args:
            trained: Training rounds that are over.
        """
        if self._spec.evaluates_only:
            return not self.ended
        every = self._spec.evaluate_every
        return every > 0 and trained > 0 and trained % every == 0 and not self._ended_last

    @property
    def completes_run(self) -> bool:
        """True if a run without training has had its evaluate round."""
        return self._spec.evaluates_only and self.ended

    def note_end(self, *, evaluated: bool) -> None:
        """Note the end of a round, which was an evaluate round or not."""
        self.number += evaluated
        self.ended |= evaluated
        self._ended_last = evaluated

    @property
    def expected(self) -> int:
        """The number of evaluate rounds of the whole run, as far as is known."""
        every = self._spec.evaluate_every
        return max(self.number, self._spec.rounds // every if every else 0)
