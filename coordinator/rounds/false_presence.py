"""Presence that is not true: ids that several agents use, and devices that are shown online and do not answer.

Agents with one id end each other's connection without end. An agent that has seen the other one says so in its state. The
coordinator also sees an id whose agent starts again and again, since each agent has a nonce of its own start. One agent that
fails and is restarted looks the same; the words name both.

A device whose connection breaks is shown offline by its last will. Behind a bridge the last will stays with the broker of the
site: if that broker dies, its devices are shown online for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

STARTS = 4
"""Starts within WINDOW_S after which an id counts as shared."""
WINDOW_S = 120.0
MUTE_ROUNDS = 2
"""Rounds in a row without an answer after which the operator is told of a device that is shown online."""
_MOST = 1000
_NAMED = 5


class FalsePresence:
    """The devices of a run whose presence is not true.

    Attributes:
        mute: Invitations in a row without any answer, by device that was shown online at the end of the round.

    Example:
        >>> presence = FalsePresence()
        >>> for at in range(4):
        ...     presence.started("pi", float(at))
        >>> sorted(presence.shared)
        ['pi']
    """

    def __init__(self) -> None:
        self.mute: dict[str, int] = {}
        self._starts: dict[str, deque[float]] = {}
        self._restless: set[str] = set()
        self._said: set[str] = set()

    @property
    def shared(self) -> set[str]:
        """Ids that several agents seem to use."""
        return self._restless | self._said

    def said(self, device: str, *, is_shared: bool) -> None:
        """Note whether the agent of a device says that another agent uses its id."""
        (self._said.add if is_shared else self._said.discard)(device)

    def started(self, device: str, now: float) -> None:
        """Note that the agent of a device has started, or that another agent has connected with its id.

        Args:
            now: The time, in seconds.
        """
        starts = self._starts.pop(device, None) or deque(maxlen=STARTS)
        starts.append(now)
        self._starts[device] = starts
        if len(self._starts) > _MOST:
            del self._starts[next(iter(self._starts))]  # the least recent
        if len(starts) == STARTS and now - starts[0] <= WINDOW_S:
            self._restless.add(device)

    def round_over(self, mute: Collection[str], answered: Collection[str]) -> None:
        """Note the devices of a round.

        Args:
            mute: Devices that are shown online and gave no answer.
            answered: Devices that gave any answer, or are offline.
        """
        for device in answered:
            self.mute.pop(device, None)
        for device in mute:
            self.mute[device] = self.mute.get(device, 0) + 1

    def words(self, least_rounds: int = 1) -> list[str]:
        """Return the problems with their remedies for people.

        Args:
            least_rounds: Rounds in a row without an answer from which on a device is named.
        """
        mute = [device for device, rounds in self.mute.items() if rounds >= least_rounds]
        words = []
        if self.shared:
            words.append(
                f"several agents use the id {_names(self.shared)} (or it starts again and again, see its log); give each agent "
                "its own --device-id"
            )
        if mute:
            words.append(
                f"shown online without any answer: {_names(mute)}; their broker may have died behind a bridge, or their access "
                "rules let them not read: see their logs, restart them, or `fedpatch devices drain DEVICE`"
            )
        return words


def _names(devices: Collection[str]) -> str:
    named = sorted(devices)
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{', '.join(named[:_NAMED])}{more}"
