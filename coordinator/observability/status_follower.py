"""Follows a run by the messages of its coordinator: takes events and the time, returns a status and lines of text.

There is no IO here: `fedpatch watch` owns the connection and the terminal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedpatch.coordinator.observability.status_message import TIMES, StatusMessage, received_message
from fedpatch.coordinator.rounds.run_summary import end_words
from fedpatch.shared.errors import WireError
from fedpatch.shared.mqtt.events import Connected, Disconnected, LinkEvent, Received
from fedpatch.shared.wire.codec import decode, to_plain
from fedpatch.shared.wire.messages import CoordinatorState, Envelope
from fedpatch.shared.wire.run_status import RunStatus
from fedpatch.shared.wire.topics import run_status

PATIENCE_S = 12.0
"""Silence after which a line explains its likely cause. A coordinator repeats its status every 5 s."""

AWAY = "coordinator away"
_BACK = "the coordinator is back"


class StatusFollower:
    """The last status of a fleet's run and whether its coordinator is online.

    Call `take` for each event of the connection and `tick` now and then; both return lines to print. Read `message` and
    `document`.

    Args:
        fleet: Name of the fleet.
        broker: Address of the broker, for lines of text.
        now: Monotonic time, in seconds.
    """

    def __init__(self, fleet: str, broker: str, now: float) -> None:
        self._fleet, self._broker = fleet, broker
        self._topic = run_status(fleet)
        self._envelope: Envelope | None = None
        self._status: RunStatus | None = None
        self._received_at = now
        # Whether the coordinator is online; None: not known yet.
        self._online: bool | None = None
        self._boot = ""
        self._linked = True
        self._complained = False

    @property
    def ended(self) -> bool:
        """True if the last status is that of a run that is over."""
        return self._status is not None and bool(self._status.stopped)

    @property
    def alone(self) -> bool:
        """True if the coordinator is offline and no status has arrived."""
        return self._online is False and self._status is None

    def take(self, event: LinkEvent, now: float) -> list[str]:
        """Handle an event of the connection; return lines to print."""
        match event:
            case Connected():
                back, self._linked = not self._linked, True
                self._received_at, self._complained = now, False
                return [f"connected to {self._broker} again"] if back else []
            case Disconnected(reason=reason):
                lost, self._linked = self._linked, False
                return [f"broker: {reason}; trying again"] if lost else []
        return self._on_received(event, now)

    def tick(self, now: float) -> list[str]:
        """Return one line that explains a silence, once per silence."""
        quiet = self._linked and self._online is not False and not self.ended
        if not quiet or self._complained or now < self._received_at + PATIENCE_S:
            return []
        self._complained = True
        return [self.why_silent()]

    def why_silent(self) -> str:
        """Explain why no status arrives."""
        where = f"no status arrives of fleet {self._fleet!r} at {self._broker}"
        if self._online is False:
            return f"{where}: no coordinator is at work for it"
        allow = f"the broker does not let this user read {self._topic} (`fedpatch broker acl --watcher USER` allows it)"
        if self._status is not None:
            return f"{where} any more, though its coordinator has not left; waiting"
        if self._online:
            return f"{where}, though its coordinator is there: it is of a version that cannot be watched, or {allow}"
        return f"{where}: no coordinator is at work for it, the fleet has another name, or {allow}"

    def message(self, now: float) -> StatusMessage | None:
        """Return the last status with its times advanced to `now`; None before the first status."""
        if self._envelope is None or self._status is None:
            return None
        message = received_message(self._envelope, self._status)
        return replace(message, status=self._at(message.status, now))

    def _at(self, status: RunStatus, now: float) -> RunStatus:
        if status.stopped:
            return replace(status, phase=f"over ({status.stopped})", devices=(), others=())
        if self._online is False:
            return replace(status, phase=AWAY, eta_s=None, pause_s=0.0)
        passed_s = max(0.0, now - self._received_at)
        return replace(
            status,
            eta_s=None if status.eta_s is None else max(0.0, status.eta_s - passed_s),
            elapsed_s=status.elapsed_s + passed_s,
            pause_s=max(0.0, status.pause_s - passed_s),
        )

    def document(self) -> dict[str, Any] | None:
        """Return the last status as plain data for JSON, with `coordinator`: "online" or "away"; None before the first."""
        if self._envelope is None:
            return None
        envelope = self._envelope
        where = {"fleet": self._fleet, "coordinator": "away" if self._online is False else "online"}
        about = {"task": envelope.task, "run": envelope.run, "epoch": envelope.epoch, "round": envelope.round}
        return {**where, **about, **to_plain(envelope.body)}

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
        if self._envelope is not None and self._envelope.run != envelope.run:
            lines.append(f"run {envelope.run} has begun")
        elif self._envelope is not None and self._online is False:
            lines.append(_BACK)
        if status.stopped and not (self.ended and not lines):
            lines.append(f"run {envelope.run} is over: {end_words(status.stopped)}")
        self._envelope, self._status = envelope, status
        self._online, self._received_at, self._complained = True, now, False
        return lines

    def _on_presence(self, state: CoordinatorState, now: float) -> list[str]:
        if state.online:
            back = self._online is False and self._status is not None and not self.ended
            self._online, self._boot = True, state.boot
            self._received_at = max(self._received_at, now) if self._status is None else self._received_at
            return [_BACK] if back else []
        if self._boot and state.boot != self._boot:
            return []  # the last will of a connection that has been replaced since
        was, self._online = self._online, False
        if was is False:
            return []
        if self._status is None:
            return [f"no coordinator is at work for fleet {self._fleet!r}; waiting for one"]
        return ["waiting for the next run"] if self.ended else ["the coordinator is gone; waiting for it to come back"]


def timeless_document(document: dict[str, Any]) -> dict[str, Any]:
    """Return `document` without the fields that change with time alone."""
    return {key: value for key, value in document.items() if key not in TIMES}
