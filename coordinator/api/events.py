"""Events of a run for programs, and the view that makes events from the status of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from fedpatch.coordinator.observability.live_view import RunView, make_view
from fedpatch.coordinator.observability.status_message import StatusMessage, View
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.shared.app.terminal import can_draw, plain_console


@dataclass(frozen=True)
class RunMessage:
    """A line of text about a run: its beginning, a lost connection to the broker, a warning.

    Args:
        text: The line.

    Example:
        >>> from fedpatch import RunMessage
        >>> RunMessage("broker: connection lost; trying again").text
        'broker: connection lost; trying again'
    """

    text: str


@dataclass(frozen=True)
class RoundOpened:
    """A round has opened.

    Args:
        run: Name of the run.
        round: Number of the round.
        cohort: Number of invited devices.
        needed: Updates that make the quorum.

    Example:
        >>> from fedpatch import RoundOpened
        >>> RoundOpened("20261124-091500-5f3a2c", 1, cohort=4, needed=3).needed
        3
    """

    run: str
    round: int
    cohort: int
    needed: int


@dataclass(frozen=True)
class RoundEnded:
    """A round has ended, and its record is saved.

    Args:
        run: Name of the run.
        record: Its record, with the user accuracy, the times, the bytes and the reasons of absent devices.

    Example:
        >>> from fedpatch import RoundEnded
        >>> def accuracies(job):
        ...     return [event.record.user_accuracy for event in job if isinstance(event, RoundEnded)]
    """

    run: str
    record: RoundRecord


RunEvent = RunMessage | RoundOpened | RoundEnded
Emit = Callable[[RunEvent], object]


class EventView:
    """A view that makes events from the status, and passes all calls on to another view.

    Rounds before a resume make no events.

    Args:
        emit: Takes the events.
        shown: The other view; None for none.
    """

    def __init__(self, emit: Emit, shown: View | None = None) -> None:
        self._emit = emit
        self._shown = shown
        self._known: int | None = None
        self._opened = 0

    def show(self, message: StatusMessage) -> None:
        """Emit events for the rounds that have opened or ended since the last call."""
        last = message.records[-1].round if message.records else 0
        if self._known is None:
            self._known = last
        for record in message.records if last > self._known else ():
            if record.round > self._known:
                self._emit(RoundEnded(message.run, record))
        self._known = max(last, self._known)
        status = message.status
        if status.cohort and not status.stopped and message.round > max(last, self._opened):
            self._opened = message.round
            self._emit(RoundOpened(message.run, message.round, status.cohort, status.needed))
        if self._shown is not None:
            self._shown.show(message)

    def say(self, line: str) -> None:
        """Emit an event for a line."""
        self._emit(RunMessage(line))
        if self._shown is not None:
            self._shown.say(line)


def shown_on_stderr(progress: bool | None) -> AbstractContextManager[RunView | None]:
    """Return the view of a run on stderr.

    Args:
        progress: True for a view in any case, False for none; None for one where a terminal or a notebook can draw it.
    """
    if progress is None:
        progress = can_draw(plain_console(sys.stderr))
    return make_view(sys.stderr) if progress else nullcontext()
