"""That a model is being made, for whoever comes after a process that did not live to see its end.

To make a model takes memory beside training's, and onnxruntime may not be built for a processor. What kills the training
process in every round would keep the device from ever giving an update; so after a few deaths no more attempts are made, until
the agent begins anew.
"""

from __future__ import annotations

from pathlib import Path

from shared.files import refusals_of

MARK = ".attempt"


class ExportAttempts:
    """The attempts at models below `directory`; the mark of one lies beside the models of its task, `.attempt`.

    It is not flushed to the disk: a power cut is no fault of an attempt. What the disk refuses is a StateError.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, task: str, most_deaths: int) -> bool:
        """Whether one may be made: not after `most_deaths` that ended their process."""
        mark = self._directory / task / MARK
        with refusals_of(mark):
            text = mark.read_text() if mark.exists() else ""
            deaths = int(text) if text.isdecimal() else 0
            if deaths < most_deaths:
                mark.write_text(str(deaths + 1))
        return deaths < most_deaths

    def end(self, task: str) -> None:
        """The process lives, whatever came of it."""
        mark = self._directory / task / MARK
        with refusals_of(mark):
            mark.unlink(missing_ok=True)

    def forget(self) -> None:
        """The agent begins anew: what ended its training process before may be mended by now."""
        with refusals_of(self._directory):
            for mark in self._directory.glob(f"*/{MARK}"):
                mark.unlink(missing_ok=True)
