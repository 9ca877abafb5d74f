"""MLflow: a run of the experiment `fedpatch` in the place, a tracking URI (default: MLFLOW_TRACKING_URI, else ./mlflow.db)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from fedpatch.shared.app.plugins import import_optional
from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun

EXPERIMENT = "fedpatch"
PLACE = "sqlite:///mlflow.db"
_TAG = "fedpatch.run"
_MOST_PARAMETERS = 100  # in a request
_LONGEST = 500  # characters of a parameter that every store accepts
_STATUS: Mapping[str, str] = {"failed": "FAILED", "interrupted": "KILLED"}


class MlflowTracker:
    """Logs settings as parameters and figures as metrics by round, with a client of its own."""

    def __init__(self, place: str) -> None:
        remedy = "pip install 'fedpatch[mlflow]'"
        self._mlflow = import_optional("mlflow", "the tracker needs the package mlflow", remedy)
        self._entities = import_optional("mlflow.entities", "the tracker needs the package mlflow", remedy)
        self._place = place or os.environ.get("MLFLOW_TRACKING_URI") or PLACE
        self._client: Any = None
        self._run = ""

    def begin(self, run: TrackedRun) -> None:
        """Find the run of an earlier process by its tag, or create it."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self._place)
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        found = self._client.search_runs([number], f"tags.`{_TAG}` = '{run.id}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {_TAG: run.id, "fedpatch.kind": run.kind, "fedpatch.version": run.version}
        self._run = self._client.create_run(number, run_name=run.id, tags=tags).info.run_id
        parameters = [
            self._entities.Param(name, str(value)[:_LONGEST])
            for name, value in {"task": run.task, **run.settings}.items()
        ]
        for start in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[start : start + _MOST_PARAMETERS])

    def log(self, round: TrackedRound) -> None:
        """Log the figures in one request."""
        now_ms = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now_ms, round.number) for name, value in round.figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, outcome: str) -> None:
        """Set the status of the run."""
        self._client.set_tag(self._run, "fedpatch.outcome", outcome)
        self._client.set_terminated(self._run, status=_STATUS.get(outcome, "FINISHED"))
