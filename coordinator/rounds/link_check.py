"""The check of the link to the broker before a round fails in which no device was heard.

Without it, a link that drops packets in silence fails one round after the other.
"""

from __future__ import annotations

from fedpatch.coordinator.rounds.participant_transitions import Phase
from fedpatch.coordinator.rounds.round_phases import Round
from fedpatch.coordinator.rounds.run_effects import CheckLink, Effect

LINK_CHECK_S = 5.0
"""Time for the broker to show that it is there."""
LINK_NEWS_S = 3.0
"""Time until the round learns that the broker has not shown itself: the link looks twice a second."""


class DeadLinkCheck:
    """Puts off the end of recruiting while the link is down, and once, to check it, where no device was heard.

    Args:
        round: The round.
    """

    def __init__(self, round: Round) -> None:
        self._round = round
        self._heard = self._checked = False

    def note_arrival(self) -> None:
        """Note that something has arrived from a device, which shows that the link works."""
        self._heard = True

    def due(self, now: float, *, connected: bool) -> list[Effect] | None:
        """Return the effects of the check if recruiting is over and goes on because of it; None: the round may end.

        Args:
            now: The time, in seconds.
            connected: Whether the link to the broker is there, as far as is known.
        """
        if not self._round.recruiting_is_over(now):
            return None
        # A late look, as after a suspended machine, finds no round that could still be saved.
        late = self._round.recruiting_is_over(now - LINK_CHECK_S)
        if late or self._heard or self._round.remaining_s(now) <= 0.0:
            return None
        if not connected:
            # The devices are asked again once the link is back.
            self._round.ask_until(now + self._round.policy.recruit_deadline_s)
            self._checked = True
            return []
        if self._checked:
            return None
        self._checked = True
        # With no more than the time of the check, the round would end before it learns that the link is dead.
        self._round.ask_until(now + LINK_CHECK_S + LINK_NEWS_S)
        return [CheckLink(self._round.number, LINK_CHECK_S)]

    def link_is_back(self, now: float) -> None:
        """Give devices the whole time to answer once more, where the link was down while they could answer."""
        if self._round.phase is Phase.RECRUITING and not self._heard:
            self._round.ask_until(now + self._round.policy.recruit_deadline_s)
