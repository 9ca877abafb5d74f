"""Runs for reports: of any length, and with arbitrary values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fedpatch.coordinator.report.series import Run
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from tests.coordinator.arbitrary_records import records

WORDS = st.sampled_from(["", "quorum_missed", "</p>\"'&", "=1+1", "\r\x00\ud800"]) | st.text(max_size=5)
COUNTS = st.integers(0, 5) | st.integers(0, 10**30)
MEASURES = st.none() | st.floats(0, 1) | st.floats(allow_nan=True, allow_infinity=True)
SECONDS = st.floats(0, 100) | st.floats(allow_nan=True, allow_infinity=True)
REASONS = st.dictionaries(WORDS, st.integers(0, 10**9), max_size=3)
RECORDS = records(words=WORDS, counts=COUNTS, measures=MEASURES, seconds=SECONDS, reasons=REASONS)


def info(id: str = "20260504-101500-3fa9c1", **changes: Any) -> RunInfo:
    """Return the registry's record of a run."""
    terms: dict[str, Any] = dict(
        created_at=1.78e9, task="digits", strategy="fedavg", private="affine", settings={"target_ua": 0.9},
        schema="0" * 64, epoch=1, status="finished", stopped_because="target_ua", user_accuracy=0.9, model=None,
    )  # fmt: skip
    return RunInfo(id, **{**terms, **changes})


RUNS = st.builds(
    Run,
    st.builds(
        info,
        id=WORDS,
        created_at=st.floats(allow_nan=True),
        task=WORDS,
        status=WORDS,
        stopped_because=st.none() | WORDS,
        settings=st.dictionaries(WORDS, st.none() | WORDS | st.integers(), max_size=3),
    ),
    st.lists(RECORDS, max_size=6).map(tuple),
)


def record(number: int, **changes: Any) -> RoundRecord:
    """Return a round with three devices, of which two report; the accuracy rises with the number."""
    accuracy = 1 - 0.9 / number
    terms: dict[str, Any] = dict(
        outcome="aggregated", cohort=3, accepted=2, declined=1, reported=2, user_accuracy=accuracy,
        user_accuracy_min=accuracy / 2, user_accuracy_after=accuracy, user_accuracy_p10=accuracy / 1.5,
        user_accuracies={"pi-1": accuracy / 2, "pi-2": accuracy}, phase_seconds=PhaseSeconds(0.1, 0.2, 0.3, 4.0, 0.5, 0.6),
        bytes_down=54_000, bytes_up=51_000, num_examples=800, decline_reasons={"unwilling": 1},
    )  # fmt: skip
    return RoundRecord(number, **{**terms, **changes})


def run(rounds: int = 5, id: str = "20260504-101500-3fa9c1", **changes: Any) -> Run:
    """Return a run of this number of rounds."""
    return Run(info(id, **changes), tuple(record(number) for number in range(1, rounds + 1)))
