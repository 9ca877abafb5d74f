"""The effect of SIGINT and SIGTERM on a command."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import pytest

from fedpatch.shared.app.signals import (
    exit_code_of,
    forward_signals,
    ignore_signals,
    interruptible,
    stoppable,
    uninterrupted,
)


def handlers() -> list[object]:
    """Return the handlers of SIGINT and SIGTERM."""
    return [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]


@contextmanager
def sigterm_before_line(line: int) -> Iterator[list[int]]:
    """Send SIGTERM before the line-th line of Python in functions called within; the yielded list is [line] once it is sent."""
    lines = 0
    sent: list[int] = []

    def trace(_frame: object, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == line and not sent:
            sent.append(line)
            with suppress(KeyboardInterrupt):  # it would end the tracing, also that of a coverage measurement
                signal.raise_signal(signal.SIGTERM)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield sent
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruptible_runs_finally_clauses_at_either_signal(number):
    before = handlers()
    unwound = []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:
            unwound.append(number)

    with pytest.raises(KeyboardInterrupt), interruptible():
        work()
    assert unwound == [number]
    assert handlers() == before


def test_ignore_signals_keeps_a_finished_result():
    before = signal.getsignal(signal.SIGTERM)
    with interruptible():
        ignore_signals()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stoppable_returns_true_after_a_signal(capfd, number):
    """The first signal is only recorded, the second ends the work at once; then the former handlers are restored."""
    before = handlers()
    with pytest.raises(KeyboardInterrupt), stoppable("stops soon") as stopped:
        assert not stopped()
        os.kill(os.getpid(), number)
        assert stopped()
        assert capfd.readouterr().err == "stops soon\n"
        os.kill(os.getpid(), number)
        time.sleep(60)
    assert handlers() == before


@pytest.mark.timeout(60)  # a wait for a lock would never end
def test_a_second_signal_may_come_while_the_first_is_heeded():
    """The second signal arrives before each line in turn; it never needs a lock that the first one holds."""
    sent = [0]
    while sent:
        with suppress(KeyboardInterrupt), stoppable("stops soon") as stopped:
            with sigterm_before_line(sent[0] + 1) as sent:
                signal.raise_signal(signal.SIGINT)
            assert stopped()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signal_is_forwarded_to_the_callback(number, code):
    before = handlers()
    come: SimpleQueue[int] = SimpleQueue()
    with forward_signals(come.put):
        os.kill(os.getpid(), number)
        assert exit_code_of(come.get()) == code
    assert come.empty()
    assert handlers() == before


def test_signal_is_forwarded_while_the_main_thread_runs_no_python():
    """A signal need not wake a sleeping main thread: here it reads in C, where the read restarts after the signal."""
    reading, writing = os.pipe()
    got = ctypes.create_string_buffer(1)
    with forward_signals(lambda number: os.write(writing, bytes((number,)))):
        signal.siginterrupt(signal.SIGTERM, False)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        ctypes.CDLL(None).read(reading, got, 1)
    os.close(reading)
    os.close(writing)
    assert got.raw == bytes((signal.SIGTERM,))


def test_forward_signals_ignores_other_signals():
    come: SimpleQueue[int] = SimpleQueue()
    others: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: others.append(number))
    try:
        with forward_signals(come.put):
            for number in (signal.SIGUSR1, signal.SIGTERM):
                os.kill(os.getpid(), number)
            assert (come.get(), others) == (signal.SIGTERM, [signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_signal_within_uninterrupted_is_forwarded_once():
    come: SimpleQueue[int] = SimpleQueue()
    with forward_signals(come.put):
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            assert come.get() == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        assert come.get() == signal.SIGINT


def test_forward_signals_closes_its_pipe():
    """No thread, no wakeup descriptor and no open file remain; other threads may open a few files."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        with forward_signals(print):
            assert "signals" in {thread.name for thread in threading.enumerate()}
    assert "signals" not in {thread.name for thread in threading.enumerate()}
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) < before + 100
