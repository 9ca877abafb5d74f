"""A fake simulation: its user accuracy rises by a rule, and it saves its state like the real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedpatch.simulator.spec.study import Outcome, Point, Study
from studies.paper.experiments import Cell, study_of
from studies.paper.results import Result, ResultOrigin, result_of

STATE_FILE = "rounds"
STARTED_AT = "2026-01-01T00:00:00+00:00"


def points_of(study: Study, needed: int | None) -> tuple[Point, ...]:
    """Points of a simulation that reaches its target after `needed` rounds, or never."""
    target = 0.97 if study.target_ua is None else study.target_ua
    last = study.rounds if needed is None or study.target_ua is None else needed
    rising = [target - 0.5 / (1 + t) if needed is None or t < needed else target for t in range(last + 1)]
    return tuple(Point(t, ua, ua / 2, 0.0, 100, 1 / t if t else None, 0.25) for t, ua in enumerate(rising))


def result(cell: Cell, seed: int, needed: int | None) -> Result:
    """Result of a cell that took `needed` rounds."""
    study = study_of(cell, seed)
    return result_of(cell, Outcome(study, points_of(study, needed), True), ResultOrigin(), STARTED_AT)


def diverged_result(cell: Cell, seed: int, rounds: int) -> Result:
    """Return the result of a cell whose training diverged after `rounds` rounds."""
    study = study_of(cell, seed)
    outcome = Outcome(study, points_of(study, None)[: rounds + 1], False)
    return result_of(cell, outcome, ResultOrigin(), STARTED_AT, diverged="client 3: a loss of nan")


class Player:
    """Replaces `simulate`; every study needs `needed` rounds. `studies` lists the requested studies."""

    def __init__(self, needed: int | None = 3) -> None:
        self._needed = needed
        self.studies: list[Study] = []
        self.rounds_played = 0

    def __call__(
        self,
        study: Study,
        *,
        workers: int,
        device: str,
        on_point: Callable[[Point], None],
        stopped: Callable[[], bool],
        saved: Path | None,
    ) -> Outcome:
        """Resume after the round that is stored in `saved`."""
        assert saved is not None
        self.studies.append(study)
        state, points = saved / STATE_FILE, points_of(study, self._needed)
        done = int(state.read_text()) if state.exists() else -1
        for point in points[done + 1 :]:
            if point.round > 0 and stopped():
                return Outcome(study, points[: point.round], False)
            on_point(point)
            self.rounds_played += point.round > 0
            state.write_text(str(point.round))
        return Outcome(study, points, True, {"torch": "0.0"})
