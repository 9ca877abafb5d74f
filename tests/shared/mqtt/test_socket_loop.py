"""The loop between a link's callers and its socket: no wake is lost."""

from __future__ import annotations

import socket
import threading
from collections import deque

import pytest

from fedpatch.shared.mqtt.socket_loop import SocketLoop

PATIENCE_S = 60.0


class Client:
    """A client whose socket receives nothing."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()

    def socket(self) -> socket.socket:
        return self._ours

    def want_write(self) -> bool:
        return False

    def loop_read(self) -> None:
        """Nothing arrives."""

    def loop_write(self) -> None:
        """Nothing is sent."""

    def loop_misc(self) -> None:
        """No keepalive."""

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch) -> None:
    """Lengthen the loop's own ticks, which would hide a lost wake."""
    monkeypatch.setattr("fedpatch.shared.mqtt.socket_loop.TICK_S", 10 * PATIENCE_S)


def test_message_put_before_wake_is_sent_in_the_next_turn():
    loop, client, done = SocketLoop(), Client(), threading.Event()
    session: deque[int] = deque()
    taken: list[int] = []

    def turn() -> bool:
        while session:
            taken.append(session.popleft())
        if len(taken) >= 4000:
            done.set()
        return not done.is_set()

    def put(first: int) -> None:
        for number in range(first, first + 1000):
            session.append(number)
            loop.wake()

    threads = [threading.Thread(target=put, args=(first,)) for first in range(0, 4000, 1000)]
    running = threading.Thread(target=loop.run, args=(client, turn))
    running.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done.wait(PATIENCE_S)
    running.join(PATIENCE_S)
    assert sorted(taken) == list(range(4000))
    loop.close()
    client.close()


def test_a_wake_between_two_connections_is_not_lost():
    loop = SocketLoop()
    for _ in range(2):
        client, woken = Client(), threading.Event()
        loop.wake()
        loop.wake()
        running = threading.Thread(target=loop.run, args=(client, lambda woken=woken: not woken.is_set()))
        running.start()
        woken.set()
        loop.wake()
        running.join(PATIENCE_S)
        assert not running.is_alive()
        client.close()
    loop.close()
