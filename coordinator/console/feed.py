"""The thread that reads: the registry of a state directory, and the status messages of the coordinator.

The registry is opened to read only. SQLite's data_version shows whether another process has changed it, so a poll
without a change reads nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from fedpatch.coordinator.console.documents import (
    MAX_RUNS,
    device_row,
    live_document,
    metric_of,
    round_row,
    run_row,
)
from fedpatch.coordinator.console.snapshot import Snapshot, with_devices, with_live, with_runs
from fedpatch.coordinator.observability.status_follower import StatusFollower, timeless_document
from fedpatch.coordinator.observability.status_message import TIMES
from fedpatch.coordinator.pki.issued_certificates import mark_revoked
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.settings import CA_DIRECTORY
from fedpatch.coordinator.storage.database.opening import exists
from fedpatch.coordinator.storage.database.registry_files import stamp_of_parts
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import as_it_is, is_at_work
from fedpatch.shared.app.files import stamp_of
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.mqtt.events import Connected, Disconnected, LinkEvent, Received

LOOK_EVERY_S = 0.2
"""Pause between two reads of the registry; the page shows a record after at most this pause and one write."""
_RETRY_S = 1.0

_log = logging.getLogger("fedpatch.console")


class RegistryReader:
    """The runs, rounds and devices in the registry of a state directory, as a snapshot.

    The file may come later, be replaced or be damaged: then the last content stays, and `problem` has the reason. A registry
    that was copied when it was opened, such as one of an earlier version, is opened again after a change, once in _RETRY_S.

    Args:
        state_dir: The state directory.
        fleet: Name of the fleet; None for all.
    """

    def __init__(self, state_dir: Path, fleet: str | None) -> None:
        self._path = state_dir / REGISTRY_FILE
        self._fleet = fleet
        self._registry: Registry | None = None
        self._stamp: tuple[int, ...] = ()
        self._content: tuple[int, ...] = ()
        self._version: tuple[int, bool] = (-1, False)
        self._retry_at = 0.0
        self._run: tuple[str, int] = ("", 0)
        self.problem = ""

    def look(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return `snapshot` with the changes of the registry since the last call; `now` is monotonic, in seconds."""
        if now < self._retry_at:
            return snapshot
        try:
            registry = self._opened()
            if registry is None:
                self._retry_at = now + _RETRY_S
                return snapshot
            # A coordinator that is killed changes no registry: its run ends with the lock.
            version = (registry.holds.version(), self._is_going_on(snapshot, registry))
            if version == self._version:
                return snapshot
            snapshot = self._read(registry, snapshot)
            self._version = version
            self._retry_at = now + _RETRY_S if registry.is_snapshot else now
            self.problem = ""
        except FedpatchError as error:
            self.close()
            self._retry_at = now + _RETRY_S
            if str(error) != self.problem:
                _log.warning("%s", error)
            self.problem = str(error)
        return snapshot

    def close(self) -> None:
        """Release the file."""
        if self._registry is not None:
            self._registry.close()
        self._registry, self._version, self._run = None, (-1, False), ("", 0)

    def _is_going_on(self, snapshot: Snapshot, registry: Registry) -> bool:
        """Return whether a coordinator has the lock of the shown fleet."""
        try:
            return is_at_work(snapshot.fleet, self._path.parent, registry)
        except OSError:
            return False

    def _opened(self) -> Registry | None:
        """Return the open registry; a replaced file is opened again. None while there is no registry."""
        stamp, content = _identity(self._path), stamp_of_parts(self._path)
        known = self._registry
        if known is not None and stamp == self._stamp and (content == self._content or not known.is_snapshot):
            return known
        self.close()
        if not exists(self._path):
            return None
        self._stamp, self._content = stamp, content
        self._registry = Registry(self._path, readonly=True)
        return self._registry

    def _read(self, registry: Registry, snapshot: Snapshot) -> Snapshot:
        found = (as_it_is(run, self._path.parent, registry) for run in registry.runs())
        runs = [run for run in found if self._fleet in (None, run.settings.get("fleet"))][:MAX_RUNS]
        counts = registry.rounds.counts()
        snapshot = with_runs(snapshot, [run_row(run, counts.get(run.id, 0)) for run in runs])
        devices = [one for one in registry.devices() if self._fleet in (None, one.fleet)]
        known = mark_revoked(devices, self._path.parent / CA_DIRECTORY)
        snapshot = with_devices(snapshot, [device_row(one) for one in known])
        return self._with_rounds(registry, snapshot, runs)

    def _with_rounds(self, registry: Registry, snapshot: Snapshot, runs: Sequence[RunInfo]) -> Snapshot:
        if not runs:
            return snapshot
        newest = max(runs, key=lambda run: (run.status == "running", run.created_at))
        last = snapshot.records[-1].round if snapshot.records else 0
        whole = self._run != (newest.id, newest.epoch)  # a resume may have repeated rounds
        added = registry.rounds.records(newest.id, after=0 if whole else last)
        self._run = (newest.id, newest.epoch)
        records = tuple(added) if whole else (*snapshot.records, *added)
        if not whole and not added:
            return snapshot
        fleet = str(newest.settings.get("fleet", ""))
        return with_rounds(snapshot, newest.id, records, fleet=fleet, whole=whole, added=added)


def with_rounds(
    snapshot: Snapshot,
    run: str,
    records: Sequence[RoundRecord],
    *,
    fleet: str,
    whole: bool,
    added: Sequence[RoundRecord],
) -> Snapshot:
    """Return the snapshot with other rounds.

    Args:
        snapshot: The snapshot before.
        records: Records of all its completed rounds.
        whole: Whether they replace all rounds of the snapshot; else `added` was appended.
        added: The new records.
    """
    rows = tuple(map(round_row, added))
    return replace(
        snapshot,
        run=run,
        fleet=fleet,
        metric=metric_of(records),
        records=tuple(records),
        rounds=rows if whole else (*snapshot.rounds, *rows),
        rounds_since=snapshot.rounds_since + whole,
    )


class Feed:
    """A thread that keeps a `Snapshot` up to date.

    Args:
        reader: Reads the registry; None without a state directory.
        follower: Follows the status messages; None without a connection.
        changed: Called from the thread with each new snapshot.
        clock: Monotonic seconds.

    Attributes:
        events: Takes the events of the connection, from any thread.
    """

    def __init__(
        self,
        reader: RegistryReader | None,
        follower: StatusFollower | None,
        changed: Callable[[Snapshot], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.events: SimpleQueue[LinkEvent | StatusFollower | None] = SimpleQueue()
        self._reader, self._follower = reader, follower
        self._changed = changed
        self._clock = clock
        self._linked = follower is None
        self._line = ""
        self._snapshot = Snapshot(live={"link": False, "line": "", "status": None})
        self._thread = threading.Thread(target=self._run, name="console feed", daemon=True)
        self._ended = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def follow(self, follower: StatusFollower) -> None:
        """Forget the status so far, and follow the messages of another broker from now on."""
        self.events.put(follower)

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._ended = True
        self.events.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._changed(self._snapshot)
        while not self._ended:
            before = self._snapshot
            self.step(LOOK_EVERY_S)
            if self._snapshot is not before:
                self._changed(self._snapshot)
        if self._reader is not None:
            self._reader.close()

    def step(self, timeout_s: float) -> Snapshot:
        """Wait for an event for at most `timeout_s` seconds, look at the registry once, and return the snapshot."""
        self._take_events(timeout_s)
        now = self._clock()
        snapshot = self._snapshot if self._reader is None else self._reader.look(self._snapshot, now)
        self._snapshot = self._with_status(snapshot, now)
        return self._snapshot

    def _take_events(self, timeout_s: float) -> None:
        deadline = self._clock() + timeout_s
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - self._clock()))
            except Empty:
                return
            if event is None:
                return
            if isinstance(event, StatusFollower):
                self._follower, self._linked, self._line = event, False, ""
                continue
            match event:
                case Connected() | Received():
                    self._linked = True
                case Disconnected():
                    self._linked = False
            if self._follower is not None and (lines := self._follower.take(event, self._clock())):
                self._line = lines[-1]

    def _with_status(self, snapshot: Snapshot, now: float) -> Snapshot:
        document, message = None, None
        if self._follower is not None:
            if lines := self._follower.tick(now):
                self._line = lines[-1]
                _log.warning("%s", self._line)
            document, message = self._follower.document(), self._follower.message(now)
        problem = self._reader.problem if self._reader is not None else ""
        live: dict[str, Any] = {"link": self._linked, "line": problem or self._line, "status": None}
        if document is not None and message is not None:
            times = {name: getattr(message.status, name) for name in TIMES}
            live["status"] = live_document({**document, **times})
            snapshot = _with_status_rounds(snapshot, message.run, document["fleet"], message.records)
        if live == snapshot.live:
            return snapshot
        return with_live(snapshot, live, news=_timeless(live) != _timeless(snapshot.live))


def _with_status_rounds(snapshot: Snapshot, run: str, fleet: str, records: Sequence[RoundRecord]) -> Snapshot:
    """Without a registry, or before it has the run, use the rounds in the status."""
    if snapshot.runs or (snapshot.run == run and list(records) == list(snapshot.records)):
        return snapshot
    return with_rounds(snapshot, run, records, fleet=fleet, whole=True, added=records)


def _timeless(live: Mapping[str, Any]) -> dict[str, Any]:
    status = live.get("status")
    return {**live, "status": None if status is None else timeless_document(status)}


def _identity(path: Path) -> tuple[int, ...]:
    """Return the inode, which differs after a file was replaced; () if there is no file."""
    return stamp_of(path)[:1]
