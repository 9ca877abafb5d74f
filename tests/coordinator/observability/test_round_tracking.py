"""Trackers of a run: the figures of a round, and the observer that passes them to trackers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fedpatch.coordinator.observability.event_observer import NullObserver, joined
from fedpatch.coordinator.observability.round_tracking import tracked, tracked_round
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.run_effects import SaveRecord, SaveSpentTime
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.trackers import tracking

RECORD = RoundRecord(
    4,
    "aggregated",
    cohort=2,
    accepted=2,
    declined=0,
    reported=2,
    user_accuracy=0.75,
    user_accuracy_min=float("nan"),
    phase_seconds=PhaseSeconds(train=1.5),
    privacy={"epsilon": None, "delta": 1e-5},
    user_accuracies={"pi-1": 0.5},
)


def test_figures_are_measures_counts_and_seconds_but_none_of_a_device():
    made = tracked_round(RECORD)
    assert made.number == 4
    assert (made.figures["user_accuracy"], made.figures["seconds/train"], made.figures["failed"]) == (0.75, 1.5, 0.0)
    assert made.figures["privacy/delta"] == 1e-5
    assert not {"user_accuracy_min", "privacy/epsilon"} & made.figures.keys()
    assert not [name for name in made.figures if "pi-1" in name]
    assert made.record == RECORD.to_dict()


def test_failed_round_has_counts_only():
    failed = RoundRecord(1, "failed", cohort=2, accepted=1, declined=1, reported=1, user_accuracy=0.1, failure="x")
    figures = tracked_round(failed).figures
    assert figures["failed"] == 1.0 and figures["declined"] == 1.0
    assert "user_accuracy" not in figures


def test_observer_tracks_saved_records_alone_and_the_end_of_the_run(monkeypatch):
    calls: list[Any] = []
    tracker = SimpleNamespace(
        begin=calls.append, log=lambda round: calls.append(round.number), end=lambda outcome: calls.append(outcome)
    )
    monkeypatch.setattr(tracking, "make_trackers", lambda names: {"mine": tracker})
    engine: Any = SimpleNamespace(spec=SimpleNamespace(run="r", task="digits"), stopped="max_rounds")
    with tracked(RunSettings(tracker=("mine",), username="u", password="secret"), engine, print) as observer:
        assert observer is not None
        both = joined(NullObserver(), observer)
        both.performed(SaveSpentTime(1.0), 0.0, 0.0)
        both.performed(SaveRecord(RECORD), 0.0, 0.0)
        both.look(0.0, waiting=0)
    assert calls[1:] == [4, "max_rounds"]
    assert (calls[0].id, calls[0].settings["username"]) == ("r", "u")
    assert "secret" not in str(calls[0])


def test_run_without_trackers_has_no_observer_of_theirs():
    engine: Any = SimpleNamespace(stopped=None)
    with tracked(RunSettings(), engine, print) as observer:
        assert observer is None
    meter = NullObserver()
    assert joined(meter, None) is meter
