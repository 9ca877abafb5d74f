"""Any records of rounds, for tests of code that reads records."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord


def records(
    *,
    words: st.SearchStrategy[str],
    counts: st.SearchStrategy[int],
    measures: st.SearchStrategy[float | None],
    seconds: st.SearchStrategy[float],
    reasons: st.SearchStrategy[dict[str, int]],
) -> st.SearchStrategy[RoundRecord]:
    """Return records from these strategies: `words` for device names and failures, `measures` for user accuracies."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("cohort", "accepted", "declined", "reported", "late", "num_examples"), counts),
        **dict.fromkeys(("bytes_down", "bytes_up"), counts),
        **{f"user_accuracy{stat}": measures for stat in ("", "_min", "_after", "_p10")},
        **dict.fromkeys(("decline_reasons", "failures", "refused"), reasons),
        "outcome": st.sampled_from(["aggregated", "failed"]),
        "phase_seconds": st.builds(PhaseSeconds, *[seconds] * 6),
        "failure": words,
        "user_accuracies": st.dictionaries(words, st.floats(0, 1), max_size=3),
    }
    return st.builds(RoundRecord, round=st.integers(1, 10**12), **fields)
