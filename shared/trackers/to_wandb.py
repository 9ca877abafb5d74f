"""Weights & Biases: an offline run in the place, a folder (default: the current one); `wandb sync` uploads it.

Nothing is sent unless WANDB_MODE is `online`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedpatch.shared.app.plugins import import_optional
from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun

PROJECT = "fedpatch"


class WandbTracker:
    """Logs settings as config and figures by round."""

    def __init__(self, place: str) -> None:
        remedy = "pip install 'fedpatch[wandb]'"
        self._wandb = import_optional("wandb", "the tracker needs the package wandb", remedy)
        self._place = Path(place or ".").expanduser()
        self._run: Any = None

    def begin(self, run: TrackedRun) -> None:
        """Begin a run, or resume it where the mode allows."""
        self._place.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE") or "offline"
        self._run = self._wandb.init(
            project=PROJECT,
            id=run.id,
            name=run.id,
            dir=str(self._place),
            mode=mode,
            resume="allow" if mode == "online" else None,
            config={"task": run.task, "fedpatch": run.version, **run.settings},
            job_type=run.kind,
            settings=self._wandb.Settings(console="off", silent=True),
        )

    def log(self, round: TrackedRound) -> None:
        """Log the figures of a round."""
        self._run.log(dict(round.figures), step=round.number)

    def end(self, outcome: str) -> None:
        """Finish the run."""
        self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=1 if outcome == "failed" else 0)
