"""A cut of the lab stops all frames: otherwise tests of partitions would prove nothing."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Iterator

import pytest

from tests.faults.lab import ON_HOSTS, Cut, Lab

pytestmark = ON_HOSTS

PATIENCE_S = 100.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(["one", "two"], seed=1) as lab:
        yield lab


def _socket(lab: Lab, host: str) -> socket.socket:
    with lab.inside(host):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind((lab.address(host), 0))
    one.settimeout(PATIENCE_S)
    return one


def _send_until_received(sender: socket.socket, receiver: socket.socket) -> None:
    """Send until the last message is received: then no message in flight can disturb a test."""
    receiver.settimeout(0.2)
    until = time.monotonic() + PATIENCE_S
    for number in itertools.count():
        sender.sendto(f"hello {number}".encode(), receiver.getsockname())
        with contextlib.suppress(TimeoutError):
            while receiver.recv(100) != f"hello {number}".encode():
                pass
            return
        assert time.monotonic() < until, "nothing is received"


@pytest.mark.parametrize("how", Cut)
def test_cut_host_receives_nothing_until_it_is_healed(lab: Lab, how: Cut):
    """No frame passes in either direction; the host notices a pulled cable, but not a silent drop."""
    with _socket(lab, "one") as one, _socket(lab, "two") as two:
        _send_until_received(one, two)
        lab.cut("two", how)
        one.sendto(b"lost", two.getsockname())
        if how is Cut.CABLE:
            with pytest.raises(OSError, match="unreachable"):
                two.sendto(b"lost", one.getsockname())
        else:
            two.sendto(b"lost", one.getsockname())
        for end in (one, two):
            end.settimeout(0.2)
            with pytest.raises(TimeoutError):
                end.recv(100)
        lab.heal("two")
        _send_until_received(one, two)
        _send_until_received(two, one)
