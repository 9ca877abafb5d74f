"""Keeps the agent's gauges up to date during its loop, and gives them to the outputs."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from pathlib import Path

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.owner_policy import OwnerPolicy
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.telemetry.exporter import Endpoint, TextFile
from fedpatch.device_agent.telemetry.gauges import Gauges
from fedpatch.device_agent.telemetry.vitals import RoundTimes
from fedpatch.shared import __version__
from fedpatch.shared.app.files import stamp_of
from fedpatch.shared.config.listen_address import parse_address
from fedpatch.shared.deadlines import earliest
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.mqtt.tls_errors import expiry_of

LOOK_EVERY_S = 1.0

_log = logging.getLogger("fedpatch.metrics")


class LocalMetrics:
    """Updated in each turn of the loop; `now` is monotonic seconds. An output that fails is logged once."""

    def __init__(
        self, settings: AgentSettings, device: str, owner: OwnerPolicy, times: RoundTimes, models: ModelStore | None
    ):
        self._settings = settings
        self._owner = owner
        self._times = times
        self._models = models
        self._info = (("version", __version__), ("device", device), ("fleet", settings.fleet))
        self._certificates = {"ca": settings.ca_file, "device": settings.cert_file}
        self._stamps: tuple[tuple[int, ...], ...] = ()
        self._expiry: tuple[tuple[str, float], ...] = ()
        self._task = ""
        self._model_path: Path | None = None
        self._model: tuple[float | None, float] | None = None
        self._last_round_at: float | None = None
        self._shown: Gauges | None = None
        self._looked_at: float | None = None
        self._look_again = False
        self._endpoint = self._listen() if settings.metrics else None
        self._file = TextFile(settings.metrics_textfile.absolute()) if settings.metrics_textfile else None

    def look(self, job: Job, *, connected: bool, task: str, now: float) -> None:
        """Update the gauges.

        Args:
            task: Name of its task; "" before it is known.
            now: Monotonic seconds.
        """
        self._look_again = self._looked_at is not None and now < self._looked_at + LOOK_EVERY_S
        if not self._look_again:
            self._looked_at = now
            if self._shown is None or self._shown.last_round is not self._times.last:
                self._last_round_at = time.time() if self._times.last else None
            self._look_at_model(task)
            self._look_at_certificates()
            self._shown = self._gauges(job, connected, task, now)
        if self._file is not None and self._shown is not None:
            self._file.show(self._shown, self._shown.text, now)

    def next_deadline(self) -> float | None:
        """Return the time of the next update."""
        again = self._looked_at + LOOK_EVERY_S if self._look_again and self._looked_at is not None else None
        return earliest(again, self._file.next_deadline() if self._file else None)

    def stop(self) -> None:
        """Remove the outputs at the end of the agent."""
        if self._endpoint is not None:
            self._endpoint.stop()
        if self._file is not None:
            self._file.remove()

    def text(self) -> str:
        """Return the last metrics as text, in any thread."""
        shown = self._shown
        return shown.text() if shown else ""

    def _listen(self) -> Endpoint | None:
        address = parse_address(self._settings.metrics or "")
        try:
            endpoint = Endpoint(address, self.text)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot be looked up
            why = getattr(error, "strerror", None) or error
            _log.warning("no metrics: cannot listen on %s: %s; --metrics names another HOST:PORT", address, why)
            return None
        _log.info("metrics: %s", endpoint.url)
        return endpoint

    def _gauges(self, job: Job, connected: bool, task: str, now: float) -> Gauges:
        owner, times = self._owner, self._times
        return Gauges(
            info=(*self._info, ("task", task)),
            state=job.state,
            paused=job.paused,
            round=job.key.round if job.key else 0,
            connected=connected,
            willing=owner.willing,
            objections=owner.conditions,
            facts=owner.facts,
            today=owner.spent_today(now),
            allowance=self._settings,
            last_round=times.last,
            last_round_at=self._last_round_at,
            report=times.report,
            model=self._model,
            expiry=self._expiry,
            downloaded=tuple(times.downloaded.items()),
        )

    def _look_at_model(self, task: str) -> None:
        """Read the model again if its link has changed; another process may have rolled it back."""
        if self._models is None or not task:
            return
        try:
            path = self._models.current(task)
            if path != self._model_path:
                self._model_path, self._model = path, _model_of(self._models, task)
        except (FedpatchError, OSError) as error:
            _log.debug("personal model: %s", error)

    def _look_at_certificates(self) -> None:
        """Read the certificates again after a renewal."""
        stamps = tuple(stamp_of(path) for path in self._certificates.values() if path)
        if stamps != self._stamps:
            self._stamps = stamps
            ends = ((name, expiry_of(path)) for name, path in self._certificates.items() if path)
            self._expiry = tuple((name, float(end)) for name, end in ends if end is not None)


def _model_of(models: ModelStore, task: str) -> tuple[float | None, float] | None:
    """Return user accuracy and time of the present model."""
    present = next((one.metadata for one in models.versions(task) if one.current), None)
    if present is None:
        return None
    try:
        return present.user_accuracy, datetime.fromisoformat(present.created).timestamp()
    except ValueError:
        return None
