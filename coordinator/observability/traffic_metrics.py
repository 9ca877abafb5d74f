"""Metrics of traffic: bytes, updates and their outcomes, chunks sent again, stalled uploads, the updates on disk."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedpatch.coordinator.observability.metric_definitions import TrafficGauges
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import (
    CountEvent,
    Effect,
    ResendChunks,
    SaveJournal,
    SaveRecord,
    SendMessage,
    StoreUpdate,
)
from fedpatch.shared.wire.messages import Grant, Manifest, Refused, WorkRequest
from fedpatch.shared.wire.reason_codes import RefuseReason

_RESULT_OF = {
    RefuseReason.DAMAGED: "damaged",
    RefuseReason.LATE: "late",
    RefuseReason.STALE_EPOCH: "late",
    RefuseReason.STALE: "late",
    RefuseReason.SUPERSEDED: "late",
}
_DOWN, _UP, _CHUNKS = ("down", "message", "wire"), ("up", "message", "wire"), ("up", "update", "wire")


class TrafficMetrics:
    """Updates the metrics of traffic. `directory` is the run's; it may have updates from before a restart."""

    def __init__(self, metrics: TrafficGauges, directory: Path, encoding: str = "") -> None:
        self._metrics = metrics
        self._encoding = encoding
        self._lacking: set[str] = set()
        self._model: Manifest | None = None
        self._granted: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._arrived: dict[str, int] = {}
        # Plain numbers until the next update: a message may come every few microseconds.
        self._travelled = dict.fromkeys((_DOWN, _UP, _CHUNKS), 0)
        metrics.connected.set(1)
        metrics.spool.set(_size_of(directory / "updates"))

    def sent(self, size_bytes: int) -> None:
        """Count a message to a device."""
        self._travelled[_DOWN] += size_bytes

    def received(self, kind: str, size_bytes: int) -> None:
        """Count a message or a chunk of a device."""
        self._travelled[_CHUNKS if kind == "update_chunk" else _UP] += size_bytes

    def link(self, *, connected: bool) -> None:
        """Count a lost or restored connection."""
        self._metrics.connected.set(connected)

    def look(self, waiting: int) -> None:
        """Update queue lengths, and add the traffic since the last call."""
        self._metrics.waiting.set(waiting)
        for labels, size_bytes in self._travelled.items():
            self._metrics.bytes.labels(*labels).inc(size_bytes)
            self._travelled[labels] = 0

    def performed(self, effect: Effect) -> None:
        """Handle an effect that concerns transfers, except messages."""
        metrics = self._metrics
        match effect:
            case StoreUpdate():
                metrics.bytes.labels("up", "update", "raw").inc(effect.manifest.raw_bytes)
                self._arrived[effect.device] = len(effect.blob)
            case CountEvent(what="reported"):
                metrics.updates.labels("committed").inc()
                metrics.spool.inc(self._arrived.pop(effect.device, 0))
            case CountEvent(what="refused", reason=RefuseReason.QUARANTINED):
                metrics.turned_away.inc()
            case ResendChunks():
                metrics.repaired.inc(len(effect.indices))
            case SaveJournal():
                self._granted.clear()
                self._arrived.clear()
            case SaveRecord():
                self._record(effect.record)

    def on_sent(self, effect: SendMessage) -> None:
        """Handle a message to a device."""
        match effect.envelope.body:
            case WorkRequest(model=model, encoding=encoding):
                self._model = model
                (self._lacking.add if encoding != self._encoding else self._lacking.discard)(effect.device)
                self._metrics.lacking.set(len(self._lacking))
            case Grant(digest=digest):
                # A device repeats a granted offer only after a silence.
                if self._granted.get(effect.device) == digest:
                    self._metrics.stalls.inc()
                self._granted[effect.device] = digest
            case Refused(digest=digest, reason=reason):
                # The answer to a repeated offer is not counted as another refusal.
                if self._refused.get(effect.device) != digest:
                    self._refused[effect.device] = digest
                    self._metrics.refusals.labels(reason).inc()
                    self._metrics.updates.labels(_RESULT_OF.get(reason, "refused")).inc()

    def _record(self, record: RoundRecord) -> None:
        self._metrics.spool.set(0)
        for bound, count in record.bounded.items():
            self._metrics.bounded.labels(bound).inc(count)
        self._metrics.bytes.labels("down", "model", "wire").inc(record.bytes_down)
        if self._model is not None:
            self._metrics.bytes.labels("down", "model", "raw").inc(record.downloads * self._model.raw_bytes)


def _size_of(spool: Path) -> int:
    """Bytes of the updates in a directory; a file that disappears meanwhile counts 0."""
    total = 0
    for path in spool.glob("*/*.fp"):
        with suppress(OSError):
            total += path.stat().st_size
    return total
