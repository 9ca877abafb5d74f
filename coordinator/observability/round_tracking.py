"""Feeds the trackers of a run with its saved rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from fedpatch.coordinator.observability.event_observer import NullObserver, Observer
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import Effect, SaveRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared import __version__
from fedpatch.shared.config.load import public_values
from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun
from fedpatch.shared.trackers.tracking import Tracking, finite, tracking

_MEASURES = ("user_accuracy", "user_accuracy_p10", "user_accuracy_min", "user_accuracy_after", "train_loss")
_COUNTS = ("cohort", "accepted", "declined", "reported", "late", "num_examples", "bytes_down", "bytes_up")


class RoundTracker(NullObserver):
    """An observer that gives each saved record to the trackers."""

    def __init__(self, followed: Tracking) -> None:
        self._followed = followed

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:  # type: ignore[override]
        """Track the round of a `SaveRecord`."""
        del began_at, ended_at
        if isinstance(effect, SaveRecord):
            self._followed.log(tracked_round(effect.record))


@contextmanager
def tracked(settings: RunSettings, engine: Engine, say: Callable[[str], None]) -> Iterator[Observer | None]:
    """Yield the observer that feeds the trackers of the settings; None without trackers."""

    def run() -> TrackedRun:
        return TrackedRun(engine.spec.run, "run", engine.spec.task, public_values(settings), __version__)

    with tracking(settings.tracker, run, say, lambda: str(engine.stopped or "failed")) as followed:
        yield None if followed is None else RoundTracker(followed)


def tracked_round(record: RoundRecord) -> TrackedRound:
    """Return a round for trackers. The figures of a failed round are only counts, since it measured a part of its devices."""
    names = _COUNTS if record.failure else (*_MEASURES, *_COUNTS)
    place = "evaluation/" if record.is_evaluation else ""
    figures: dict[str, float | None] = {place + name: getattr(record, name) for name in names}
    figures |= {f"seconds/{phase}": value for phase, value in asdict(record.phase_seconds).items()}
    figures |= {"seconds": record.seconds, "failed": float(not record.succeeded)}
    figures |= {f"independent/{name}": value for name, value in record.independent.items()}
    figures |= {f"privacy/{name}": value for name, value in record.privacy.items()}
    return TrackedRound(record.round, finite(figures), record.to_dict())
