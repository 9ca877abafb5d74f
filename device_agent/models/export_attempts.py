"""Attempts to make a personal model: after two that have ended their process no more are made until the agent restarts.

An export needs memory beside that of training, and onnxruntime may not support the processor. An export that killed the
training process in every round would keep the device from ever sending an update. The mark of an unfinished export remains if
the process was killed.
"""

from __future__ import annotations

from pathlib import Path

from fedpatch.shared.app.files import refusals_of

MARK = ".attempt"
MAX_DEATHS = 2
"""Attempts that may end their process before no more are made."""


class ExportAttempts:
    """Counts attempts to make a model that ended the process; the mark is `.attempt` beside the models of its task.

    The mark is not flushed to disk, since a power cut is no fault of an attempt. Errors of the disk raise StateError.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, task: str) -> bool:
        """Begin an attempt; return False after MAX_DEATHS attempts that ended their process."""
        mark = self._directory / task / MARK
        with refusals_of(mark):
            text = mark.read_text() if mark.exists() else ""
            deaths = int(text) if text.isdecimal() else 0
            if deaths < MAX_DEATHS:
                mark.write_text(str(deaths + 1))
        return deaths < MAX_DEATHS

    def end(self, task: str) -> None:
        """Note that the attempt is over and the process still runs."""
        mark = self._directory / task / MARK
        with refusals_of(mark):
            mark.unlink(missing_ok=True)

    def forget(self) -> None:
        """Forget earlier attempts after a start of the agent, since the cause may be gone."""
        with refusals_of(self._directory):
            for mark in self._directory.glob(f"*/{MARK}"):
                mark.unlink(missing_ok=True)
