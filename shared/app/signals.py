"""Handling of SIGINT and SIGTERM.

The main thread runs a Python signal handler between two of its instructions. So a handler must not take a lock, because the
main thread may hold it. A handler also does not wake a main thread that is about to wait for a lock or a queue. A program
whose main thread waits for long uses `forward_signals`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType

EXIT_INTERRUPTED = 130  # a shell's exit code for a process that SIGINT ended

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NO_SIGNAL = 0


def exit_code_of(number: int) -> int:
    """Return the exit code of a process that works until a signal: 0 for SIGTERM, 130 for SIGINT."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else 0


@contextmanager
def signals_to(
    handler: Callable[[int, FrameType | None], object], numbers: Sequence[signal.Signals] = _SIGNALS
) -> Iterator[None]:
    """Let SIGINT and SIGTERM, or the signals `numbers`, call `handler` in the block; restore the former handlers after it."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def interruptible() -> AbstractContextManager[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt in the block, so that `finally` clauses end child processes."""
    return signals_to(signal.default_int_handler)


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM until the `interruptible` block ends, so that a finished result is still printed."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def stoppable(notice: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM has arrived, for work that stops where it can be resumed.

    The first signal prints `notice`, unless it is empty, on stderr. The second one raises KeyboardInterrupt.
    """
    arrived: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        if arrived:
            raise KeyboardInterrupt
        arrived.append(number)
        with suppress(OSError):  # stderr may be closed
            text = f"{notice}\n" if notice else ""
            os.write(2, text.encode())  # not sys.stderr, whose own write this may have interrupted

    with signals_to(record):
        yield lambda: bool(arrived)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a signal until the block ends, if its handler may raise. A second signal is handled at once."""
    main = threading.current_thread() is threading.main_thread()  # only the main thread may set handlers
    handlers = {number: signal.getsignal(number) for number in _SIGNALS if main}
    before = {number: old for number, old in handlers.items() if callable(old) and old is not _told_elsewhere}
    arrived: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        if arrived:  # the user insists, perhaps because an import hangs
            before[signal.Signals(number)](number, frame)
        arrived.append(number)

    for number in before:
        signal.signal(number, record)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])


@contextmanager
def forward_signals(on_signal: Callable[[int], object], also: Sequence[signal.Signals] = ()) -> Iterator[None]:
    """Let SIGINT and SIGTERM call `on_signal` with their number in a thread of its own, even while the main thread is busy.

    The signals `also` do the same. Only the main thread may enter the block. A process forked in it, without exec, would
    report its signals here too.
    """
    wanted = (*_SIGNALS, *also)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # set_wakeup_fd requires it

    def forward() -> None:
        while (number := os.read(reading, 1)[0]) != _NO_SIGNAL:
            if number in wanted:
                on_signal(number)

    forwarder = threading.Thread(target=forward, name="signals", daemon=True)
    forwarder.start()
    # The interpreter writes the number of each signal that has a Python handler to this pipe, before the handler runs.
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        with signals_to(_told_elsewhere, wanted):
            yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writing, bytes((_NO_SIGNAL,)))
        forwarder.join()
        os.close(reading)
        os.close(writing)


def _told_elsewhere(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. `forward_signals` needs this handler: without a Python handler the pipe receives no signal."""
