"""The interface of an experiment tracker. A package offers one as an entry point of the group `fedpatch.trackers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """A run or a simulation when it begins or is resumed.

    Attributes:
        id: Its name. A resume has the same name, and later rounds.
        kind: "run" or "simulation".
        task: Name of the task.
        settings: Public settings, without secrets.
        version: Version of fedpatch.
    """

    id: str
    kind: str
    task: str
    settings: Mapping[str, Any]
    version: str


@dataclass(frozen=True)
class TrackedRound:
    """A round that has ended.

    Attributes:
        number: Number of the round.
        figures: Figures of the round by name, all finite; a measure that was not taken is missing.
        record: The whole record as plain data: of a run that of `fedpatch show --json`, of a simulation the point of its curve.
    """

    number: int
    figures: Mapping[str, float]
    record: Mapping[str, Any]


class Tracker(Protocol):
    """Receives the rounds of one run. All calls come from one thread; an exception ends the tracking, not the run.

    An entry point is a function that takes the place of `--tracker NAME:PLACE` ("" without one) and returns a Tracker. It
    raises UsageError if a package is missing, and opens nothing yet.
    """

    def begin(self, run: TrackedRun) -> None:
        """Begin to track a run."""

    def log(self, round: TrackedRound) -> None:
        """Track a round."""

    def end(self, outcome: str) -> None:
        """Finish; `outcome` is the reason of the end, such as "max_rounds", "interrupted" or "failed"."""
