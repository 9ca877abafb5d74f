"""The exit code of a command that has run rounds (docs/reference/exit-codes.md)."""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.shared.app.signals import EXIT_INTERRUPTED

EXIT_CODES: Mapping[str, int] = {"failed": 1, "interrupted": EXIT_INTERRUPTED}
"""By the reason for the end of a run, except 0."""


def exit_code_of_run(summary: RunSummary) -> int:
    """Return the exit code of a run: 0 if it has come to its end, 1 if it failed or no round succeeded."""
    return EXIT_CODES.get(summary.stopped_because, 1 if summary.in_vain else 0)
