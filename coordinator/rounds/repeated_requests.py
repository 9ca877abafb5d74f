"""When a work request is sent again: a broker with a full queue may drop the request or its answer.

| devices | time |
|---|---|
| have not answered | every REINVITE_S |
| at work, and have sent nothing for PROBE_S | at once, and again after PROBE_S (coordinator.rounds.unresponsive_devices) |
| download or train when the quorum is met | once |

A working device answers a repeated request at once and goes on with its work.
"""

from __future__ import annotations

from fedpatch.coordinator.rounds.participant_transitions import AT_WORK, Phase, State
from fedpatch.coordinator.rounds.round_phases import Round
from fedpatch.coordinator.rounds.unresponsive_devices import PROBE_S
from fedpatch.shared.deadlines import earliest

REINVITE_S = 3.0


class RepeatedRequests:
    """The times at which an open round sends its work request again.

    Args:
        now: The time at which the round was opened, in seconds.
        evaluates: Whether it is an evaluate round, which waits for all devices, with any quorum.
    """

    def __init__(self, now: float, *, evaluates: bool) -> None:
        self._reinvite_at = now
        self._probe_at = now + PROBE_S
        self._asked_at_quorum = evaluates

    def reinvites(self, now: float) -> bool:
        """Return whether the devices without an answer are due."""
        return now >= self._reinvite_at

    def note_requests(self, now: float) -> None:
        """Note that requests are sent."""
        if now >= self._reinvite_at:
            self._reinvite_at = now + REINVITE_S

    def probes(self, now: float) -> bool:
        """Return whether the silent devices are due; the next look is half of PROBE_S later."""
        if now < self._probe_at:
            return False
        self._probe_at = now + PROBE_S / 2
        return True

    def asks_at_quorum(self, round: Round) -> bool:
        """Return, once, whether the quorum of a collecting round is met."""
        if self._asked_at_quorum or round.phase is not Phase.COLLECTING or round.quorum_s is None:
            return False
        self._asked_at_quorum = True
        return True

    def next_deadline(self, round: Round, *, begun: bool) -> float | None:
        """Return the next time at which devices may be due; None without such devices.

        Args:
            begun: Whether its devices were invited.
        """
        reinvite_at = self._reinvite_at if round.count(State.INVITED) else None
        probe_at = self._probe_at if begun and round.count(*AT_WORK) else None
        return earliest(reinvite_at, probe_at)
