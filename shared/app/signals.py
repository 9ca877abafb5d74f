"""What SIGINT and SIGTERM do to a command.

A handler in Python is run by the main thread, between two of its instructions. So it must take no lock (the main thread
may hold it), and it does not wake a main thread that was about to wait for a lock or a queue. What waits for long without
looking up in between takes `signals_told`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType

EXIT_INTERRUPTED = 130  # as shells tell a process that SIGINT ended

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NO_SIGNAL = 0


def exit_code_of(number: int) -> int:
    """With which a process ends that was to work until a signal: 0 for SIGTERM, 130 for SIGINT."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else 0


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """SIGINT and SIGTERM call `handler`, and afterwards do what they did before."""
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def interruptible() -> AbstractContextManager[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, so that what was started is ended on the way out."""
    return signals_to(signal.default_int_handler)


def ignore_signals() -> None:
    """Neither SIGINT nor SIGTERM does anything until `interruptible` is left: for a result that is there, but not told."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def stoppable(told: str) -> Iterator[Callable[[], bool]]:
    """Yields whether SIGINT or SIGTERM has come, for work that stops where it can be taken up again.

    The first only writes `told` on stderr; the second raises KeyboardInterrupt.
    """
    come: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if come:
            raise KeyboardInterrupt
        come.append(number)
        with suppress(OSError):  # nobody reads any more
            os.write(2, f"{told}\n".encode())  # sys.stderr may be in the middle of a write that this interrupts

    with signals_to(note):
        yield lambda: bool(come)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal whose handler may raise something is heeded afterwards."""
    main = threading.current_thread() is threading.main_thread()  # no other thread may set handlers, or is interrupted
    handlers = {number: signal.getsignal(number) for number in _SIGNALS if main}
    before = {number: one for number, one in handlers.items() if callable(one) and one is not _told_elsewhere}
    come: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if come:  # who insists, because the import hangs say, is heeded now
            before[signal.Signals(number)](number, frame)
        come.append(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if come:
        signal.raise_signal(come[0])


@contextmanager
def signals_told(tell: Callable[[int], object]) -> Iterator[None]:
    """SIGINT and SIGTERM call `tell` with their number, in a thread of its own, whatever the main thread is doing.

    Only the main thread may enter. A process forked meanwhile, without exec, would tell its signals here too.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # as set_wakeup_fd wants it

    def hear() -> None:
        while (number := os.read(reading, 1)[0]) != _NO_SIGNAL:
            if number in _SIGNALS:
                tell(number)

    hearing = threading.Thread(target=hear, name="signals", daemon=True)
    hearing.start()
    # The interpreter writes there the number of each signal that has a handler in Python, before that is run.
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        with signals_to(_told_elsewhere):
            yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writing, bytes((_NO_SIGNAL,)))
        hearing.join()
        os.close(reading)
        os.close(writing)


def _told_elsewhere(_number: int, _frame: FrameType | None) -> None:
    """The handler while `signals_told`: there must be one, and it has nothing to do."""
