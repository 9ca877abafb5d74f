"""The lab does to traffic what it says: otherwise tests in it would prove nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.lab import PREFIX, Cut, Lab, require_lab
from tests.faults.netem import WIFI, Line, LineTerms

PATIENCE_S = 100.0

TERMS = st.builds(
    LineTerms,
    delay_s=st.floats(0, 0.5),
    jitter_s=st.floats(0, 0.1),
    loss=st.floats(0, 0.5),
    rate_bit_s=st.sampled_from([0.0, 1e5, 1e6]),
    queue_bytes=st.integers(0, 100_000),
)
FRAMES = st.lists(st.tuples(st.floats(0, 0.05), st.integers(60, 1514)), max_size=60)


@given(TERMS, FRAMES, st.integers())
def test_a_line_keeps_order_rate_and_delay(terms: LineTerms, frames: list[tuple[float, int]], seed: int):
    """Frames come out in order, none before it entered, and no faster than the rate; and so again for the same seed."""
    lines = Line(random.Random(seed), terms), Line(random.Random(seed), terms)
    now, first, sent_bytes = 0.0, 0.0, 0
    arrivals: list[float] = []
    for pause_s, size in frames:
        now += pause_s
        arrival = lines[0].enter(size, now)
        assert arrival == lines[1].enter(size, now)
        if arrival is not None:
            first, sent_bytes = (now if not arrivals else first), sent_bytes + size
            arrivals.append(arrival)
            assert arrival >= now
            assert not terms.rate_bit_s or arrival >= first + sent_bytes * 8 / terms.rate_bit_s - 1e-9
    assert all(a <= b for a, b in pairwise(arrivals))


def test_a_line_loses_as_many_as_it_should():
    """Of ten thousand frames over a line that loses one in twenty, about five hundred are lost."""
    line = Line(random.Random(0), LineTerms(loss=0.05))
    assert 400 < sum(line.enter(100, 0.0) is None for _ in range(10_000)) < 600


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


def _send_until_heard(sender: socket.socket, receiver: socket.socket) -> None:
    """Until the last that was sent is heard: nothing is under way any more that a test could take for its own."""
    receiver.settimeout(0.2)
    until = time.monotonic() + PATIENCE_S
    for number in itertools.count():
        sender.sendto(f"hello {number}".encode(), receiver.getsockname())
        with contextlib.suppress(TimeoutError):
            while receiver.recv(100) != f"hello {number}".encode():
                pass
            return
        assert time.monotonic() < until, "nothing is heard"


@pytest.mark.lab
def test_hosts_hear_each_other_and_nobody_else(lab: Lab):
    """A datagram arrives; the machine that the lab is on has no way to it."""
    with _socket(lab, "one") as one, _socket(lab, "two") as two:
        _send_until_heard(one, two)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside, pytest.raises(OSError, match=r"assign|route"):
            outside.bind(two.getsockname())


@pytest.mark.lab
def test_frames_take_their_time(lab: Lab):
    """Over a link of 80 ms each way and 1 Mbit/s, an echo takes 160 ms at least, and 25 kB take 200 ms."""
    with _socket(lab, "one") as one, _socket(lab, "two") as two:
        _send_until_heard(one, two)  # knows its address from now on
        lab.shape("two", LineTerms(delay_s=0.08, rate_bit_s=1e6))
        began = time.monotonic()
        one.sendto(b"there", two.getsockname())
        two.settimeout(PATIENCE_S)
        assert two.recv(100) == b"there"
        two.sendto(b"back", one.getsockname())
        assert one.recv(100) == b"back"
        assert time.monotonic() - began >= 0.16
        began = time.monotonic()
        for _ in range(25):
            one.sendto(bytes(1000), two.getsockname())
        assert sum(len(two.recv(2000)) for _ in range(25)) == 25_000
        assert time.monotonic() - began >= 0.2 + 0.08


@pytest.mark.lab
def test_a_shaped_link_loses_frames(lab: Lab):
    """Of 400 datagrams over a link that loses one in twenty, some are lost, and not many."""
    with _socket(lab, "one") as one, _socket(lab, "two") as two:
        _send_until_heard(one, two)
        lab.shape("two", LineTerms(loss=WIFI.loss))
        heard = 0
        two.settimeout(0.02)
        for _ in range(400):
            one.sendto(b"x", two.getsockname())
            with contextlib.suppress(TimeoutError):
                heard += len(two.recv(100))
        two.settimeout(1.0)
        with contextlib.suppress(TimeoutError):  # what a busy machine carries later
            while True:
                heard += len(two.recv(100))
        assert 340 < heard < 400


@pytest.mark.lab
@pytest.mark.parametrize("how", Cut)
def test_a_cut_is_a_cut_until_it_is_healed(lab: Lab, how: Cut):
    """Nothing gets through in either direction; a pulled cable is noticed by the host, a silent drop is not."""
    with _socket(lab, "one") as one, _socket(lab, "two") as two:
        _send_until_heard(one, two)
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
        _send_until_heard(one, two)
        _send_until_heard(two, one)


@pytest.mark.lab
def test_processes_end_with_their_lab():
    """What was started on a host does not outlive the lab, nor does the host."""
    with Lab(["one"], seed=1) as lab, lab.inside("one"):
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    assert sleeper.wait(PATIENCE_S) == -9
    assert _namespaces() == []


@pytest.mark.lab
def test_what_a_crash_left_behind_is_removed():
    """A lab whose process is no more is torn down by the next one; one whose process lives is left alone."""
    require_lab()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    leftover, in_use = f"{PREFIX}-{int(gone.stdout)}-0-one", f"{PREFIX}-{os.getppid()}-0-one"
    for name in (leftover, in_use):
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        with Lab(["one"], seed=1):
            names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
            assert leftover not in names
            assert in_use in names
    finally:
        subprocess.run(["ip", "netns", "del", in_use], check=True)


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"{PREFIX}-{os.getpid()}-")]
