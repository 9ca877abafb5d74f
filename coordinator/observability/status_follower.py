"""What somebody who watches a run knows of it: messages and the time go in, a picture and sentences come out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedpatch.coordinator.observability.snapshot import Snapshot, snapshot_of
from fedpatch.coordinator.rounds.run_records import end_words
from fedpatch.shared.errors import WireError
from fedpatch.shared.mqtt.events import Connected, Disconnected, LinkEvent, Received
from fedpatch.shared.wire.codec import decode, to_plain
from fedpatch.shared.wire.messages import CoordinatorState, Envelope
from fedpatch.shared.wire.run_status import RunStatus
from fedpatch.shared.wire.topics import run_status

PATIENCE_S = 12.0
"""Without a word for so long, it is said why that may be. A coordinator tells the same again after 5 s."""

AWAY = "coordinator away"
_BACK = "the coordinator is back"
_TIMES = ("eta_s", "elapsed_s", "pause_s")


class StatusFollower:
    """Drive it with `take` and `tick`, which return what there is to say; read `picture` and `document`."""

    def __init__(self, fleet: str, broker: str, now: float) -> None:
        self._fleet, self._broker = fleet, broker
        self._topic = run_status(fleet)
        self._said: Envelope | None = None
        self._status: RunStatus | None = None
        self._heard_at = now
        # Whether a coordinator is at work; None: nobody has said so or otherwise.
        self._online: bool | None = None
        self._boot = ""
        self._linked = True
        self._complained = False

    @property
    def ended(self) -> bool:
        """The run that was heard of last is over."""
        return self._status is not None and bool(self._status.stopped)

    @property
    def alone(self) -> bool:
        """The broker says that no coordinator is at work, and nothing was heard of one."""
        return self._online is False and self._status is None

    def take(self, event: LinkEvent, now: float) -> list[str]:
        """Something came from the link."""
        match event:
            case Connected():
                back, self._linked = not self._linked, True
                self._heard_at, self._complained = now, False
                return [f"connected to {self._broker} again"] if back else []
            case Disconnected(reason=reason):
                lost, self._linked = self._linked, False
                return [f"broker: {reason}; trying again"] if lost else []
        return self._on_received(event, now)

    def tick(self, now: float) -> list[str]:
        """Lets time pass: of silence, what may be behind it, once."""
        quiet = self._linked and self._online is not False and not self.ended
        if not quiet or self._complained or now < self._heard_at + PATIENCE_S:
            return []
        self._complained = True
        return [self.why_silent()]

    def why_silent(self) -> str:
        """Why nothing may be heard."""
        where = f"nothing is heard of fleet {self._fleet!r} at {self._broker}"
        if self._online is False:
            return f"{where}: no coordinator is at work for it"
        allow = f"the broker does not let this user read {self._topic} (`fedpatch broker acl --watcher USER` allows it)"
        if self._status is not None:
            return f"{where} any more, though nobody has said that its coordinator is gone; waiting"
        if self._online:
            return f"{where}, though its coordinator is there: it is of a version that cannot be watched, or {allow}"
        return f"{where}: no coordinator is at work for it, the fleet has another name, or {allow}"

    def picture(self, now: float) -> Snapshot | None:
        """The run as it was told last, with the seconds that have passed since; None before anything was told."""
        if self._said is None or self._status is None:
            return None
        seen = snapshot_of(self._said, self._status)
        if self._status.stopped:
            return replace(seen, phase=f"over ({self._status.stopped})", devices=(), others=())
        if self._online is False:
            return replace(seen, phase=AWAY, eta_s=None, pause_s=0.0)
        passed_s = max(0.0, now - self._heard_at)
        return replace(
            seen,
            eta_s=None if seen.eta_s is None else max(0.0, seen.eta_s - passed_s),
            elapsed_s=seen.elapsed_s + passed_s,
            pause_s=max(0.0, seen.pause_s - passed_s),
        )

    def document(self) -> dict[str, Any] | None:
        """The message as plain data for JSON, and whether the `coordinator` is "online" or "away"."""
        if self._said is None:
            return None
        said = self._said
        where = {"fleet": self._fleet, "coordinator": "away" if self._online is False else "online"}
        about = {"task": said.task, "run": said.run, "epoch": said.epoch, "round": said.round}
        return {**where, **about, **to_plain(said.body)}

    def _on_received(self, event: Received, now: float) -> list[str]:
        try:
            envelope = decode(event.payload) if event.payload else None
        except WireError:
            envelope = None
        if envelope is None:
            return []
        if isinstance(envelope.body, RunStatus) and event.topic == self._topic:
            return self._on_status(envelope, envelope.body, now)
        if isinstance(envelope.body, CoordinatorState) and event.topic != self._topic:
            return self._on_presence(envelope.body, now)
        return []

    def _on_status(self, envelope: Envelope, status: RunStatus, now: float) -> list[str]:
        lines = []
        if self._said is not None and self._said.run != envelope.run:
            lines.append(f"run {envelope.run} has begun")
        elif self._said is not None and self._online is False:
            lines.append(_BACK)
        if status.stopped and not (self.ended and not lines):
            lines.append(f"run {envelope.run} is over: {end_words(status.stopped)}")
        self._said, self._status = envelope, status
        self._online, self._heard_at, self._complained = True, now, False
        return lines

    def _on_presence(self, state: CoordinatorState, now: float) -> list[str]:
        if state.online:
            back = self._online is False and self._status is not None and not self.ended
            self._online, self._boot = True, state.boot
            self._heard_at = max(self._heard_at, now) if self._status is None else self._heard_at
            return [_BACK] if back else []
        if self._boot and state.boot != self._boot:
            return []  # the last will of a connection that has been replaced since
        was, self._online = self._online, False
        if was is False:
            return []
        if self._status is None:
            return [f"no coordinator is at work for fleet {self._fleet!r}; waiting for one"]
        return ["waiting for the next run"] if self.ended else ["the coordinator is gone; waiting for it to come back"]


def timeless(document: dict[str, Any]) -> dict[str, Any]:
    """A document without what changes by the mere passing of time."""
    return {key: value for key, value in document.items() if key not in _TIMES}
