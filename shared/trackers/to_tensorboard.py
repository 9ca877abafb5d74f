"""TensorBoard: an event file for each run below the place, a folder (default: ./tensorboard)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpatch.shared.app.plugins import import_optional
from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun

PLACE = "tensorboard"


class TensorBoardTracker:
    """Writes each figure as a scalar by round; runs are folders, which TensorBoard shows side by side."""

    def __init__(self, place: str) -> None:
        remedy = "pip install 'fedpatch[tensorboard]'"
        self._summary = import_optional("tensorboard.summary", "the tracker needs the package tensorboard", remedy)
        self._place = Path(place or PLACE).expanduser()
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> None:
        """Open an event file; a resume adds a second one to the folder. The settings are in the same folder as JSON."""
        folder = self._place / run.id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "settings.json").write_text(json.dumps(dict(run.settings), indent=1, default=str), "utf-8")
        self._writer = self._summary.Writer(str(folder))

    def log(self, round: TrackedRound) -> None:
        """Write the figures, and flush them for a TensorBoard that is open."""
        for name, value in round.figures.items():
            self._writer.add_scalar(name, value, round.number)
        self._writer.flush()

    def end(self, outcome: str) -> None:
        """Close the event file."""
        del outcome
        self._writer.close()
