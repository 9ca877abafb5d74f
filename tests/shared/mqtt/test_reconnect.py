"""How long a link waits before it reconnects."""

from __future__ import annotations

import threading

from fedpatch.shared.mqtt.reconnect import ConnectionAttempt, Reconnector
from fedpatch.shared.mqtt.session import Session
from fedpatch.shared.mqtt.url import parse_broker_url

SHORTEST_S, LONGEST_S = 1.0, 60.0


class Pauses(threading.Event):
    """Records each pause instead of waiting; ends after `count` pauses."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._count = count

    def wait(self, timeout: float | None = None) -> bool:
        """No time passes."""
        assert timeout is not None
        self.seconds.append(timeout)
        if len(self.seconds) == self._count:
            self.set()
        return self.is_set()


def pauses(count: int, patient_from: int) -> list[float]:
    """Return a link's pauses if its connections break at once; from attempt `patient_from` on it is patient."""
    session = Session(parse_broker_url("mqtt://broker.local"), 10)
    session.stopping = waited = Pauses(count)
    made: list[ConnectionAttempt] = []

    def make(attempt: ConnectionAttempt) -> None:
        made.append(attempt)
        attempts.patient = len(made) >= patient_from

    attempts = Reconnector(session, (SHORTEST_S, LONGEST_S), make, lambda event: None)
    attempts.run()
    return waited.seconds


def test_pauses_are_drawn_and_grow_up_to_the_longest():
    """The devices of a fleet, which all lose a broker at one moment, reconnect at different times."""
    seconds = pauses(200, patient_from=1000)
    assert all(SHORTEST_S <= one <= LONGEST_S for one in seconds)
    assert seconds[0] <= 3 * SHORTEST_S
    assert len(set(seconds)) > 20


def test_a_patient_link_waits_for_as_long_as_it_may():
    seconds = pauses(10, patient_from=4)
    assert seconds[3:] == [LONGEST_S] * 7
    assert max(seconds[:3]) < LONGEST_S
