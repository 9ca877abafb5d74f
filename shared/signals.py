"""SIGINT and SIGTERM, as commands take them: to end what they started, or to stop where the work can be taken up again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

EXIT_INTERRUPTED = 130  # as shells tell a process that SIGINT ended

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, so that what was started is ended on the way out."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def ignore_signals() -> None:
    """Neither SIGINT nor SIGTERM does anything until `interruptible` is left: for a result that is there, but not told."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def stoppable(told: str) -> Iterator[Callable[[], bool]]:
    """Yields whether SIGINT or SIGTERM has come, for work that stops where it can be taken up again.

    The first only writes `told` on stderr; the second raises KeyboardInterrupt.
    """
    come = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        if come.is_set():
            raise KeyboardInterrupt
        come.set()
        with suppress(OSError):  # nobody reads any more
            os.write(2, f"{told}\n".encode())  # sys.stderr may be in the middle of a write that this interrupts

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield come.is_set
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def catch_signals() -> Callable[[], int]:
    """From now on; what it returns waits for one and gives the exit code: 0 for SIGTERM, 130 for SIGINT."""
    come = threading.Event()
    got: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        got.append(number)
        come.set()

    def wait() -> int:
        come.wait()
        return EXIT_INTERRUPTED if got[0] == signal.SIGINT else 0

    for number in _SIGNALS:
        signal.signal(number, note)
    return wait
