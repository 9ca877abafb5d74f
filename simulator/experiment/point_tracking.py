"""Feeds trackers with the points of a simulation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from fedpatch.shared import __version__
from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun
from fedpatch.shared.trackers.tracking import finite, tracking
from fedpatch.simulator.spec.study import Point, Study

Take = Callable[[Point], None]
Stopped = Callable[[], bool]


def name_of(study: Study) -> str:
    """Return the name of a simulation for trackers. It follows from the terms, so a resumed simulation keeps its name."""
    digest = hashlib.sha256(json.dumps(study.to_dict(), sort_keys=True).encode()).hexdigest()
    return f"simulate-{study.task.rpartition(':')[2]}-{digest[:10]}"


@contextmanager
def tracked(
    study: Study, trackers: Sequence[str], take: Take, stopped: Stopped, say: Callable[[str], object]
) -> Iterator[tuple[Take, Stopped]]:
    """Yield the two functions of a simulation, extended to log to the trackers.

    Points of an earlier process come before the first call of `stopped`, and are not logged again.

    Args:
        study: The simulation.
        trackers: Each NAME or NAME:PLACE.
        take: Called with each point.
        stopped: Called between rounds; True stops the simulation.
        say: Shows a line to the user.
    """
    last: list[Point] = []
    asked: list[bool] = []

    def run() -> TrackedRun:
        return TrackedRun(name_of(study), "simulation", study.task, study.to_dict(), __version__)

    def outcome() -> str:
        if not last:
            return "failed"
        if study.reached(last[-1].user_accuracy):
            return "target_ua"
        return "max_rounds" if last[-1].round >= study.rounds else "interrupted"

    with tracking(trackers, run, say, outcome) as followed:
        if followed is None:
            yield take, stopped
            return

        def take_and_track(point: Point) -> None:
            last[:] = [point]
            if asked:
                figures = finite({name: value for name, value in asdict(point).items() if name != "round"})
                followed.log(TrackedRound(point.round, figures, asdict(point)))
            take(point)

        def stop() -> bool:
            asked[:] = [True]
            return stopped()

        yield take_and_track, stop
