"""Work in a background thread: its events, its result, its cancellation."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

E = TypeVar("E")
R = TypeVar("R")

_EXIT_S = 5.0
"""Time that a job has for its end when the interpreter exits."""


class Cancellation:
    """A request to end work, which the work polls (`requested`) or is called for (`calls`). All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested = False
        self._actions: list[Callable[[], object]] = []

    def requested(self) -> bool:
        """Return whether the work is to end."""
        return self._requested

    def request(self) -> None:
        """Ask the work to end. A second request does nothing."""
        with self._lock:
            actions = [] if self._requested else list(self._actions)
            self._requested = True
        for action in actions:
            action()

    @contextmanager
    def calls(self, action: Callable[[], object]) -> Iterator[None]:
        """Within the block, call `action` when the end of the work is requested; at once if it was requested before."""
        with self._lock:
            self._actions.append(action)
            requested = self._requested
        if requested:
            action()
        try:
            yield
        finally:
            with self._lock:
                self._actions.remove(action)


class BackgroundJob(Generic[E, R]):
    """A run or a simulation in a thread of its own, with its events and its result.

    It can be iterated in any number of loops, `for event in job` or `async for event in job`; each gets all events from the
    first on, and ends with the job. `job.result()` and `await job` return the result. As a context manager it cancels work
    that has not ended, and waits for it. At the exit of the interpreter the work is cancelled too.

    Args:
        name: Name of the thread.
        work: The work. Its arguments are a function that receives its events, and the cancellation to follow.

    Example:
        >>> from fedpatch import BackgroundJob
        >>> def count(emit, cancellation):
        ...     for number in range(3):
        ...         emit(number)
        ...     return "counted"
        >>> with BackgroundJob("counting", count) as job:
        ...     print(list(job), job.result())
        [0, 1, 2] counted
    """

    def __init__(self, name: str, work: Callable[[Callable[[E], None], Cancellation], R]) -> None:
        self._cancellation = Cancellation()
        self._changed = threading.Condition()
        self._events: list[E] = []
        self._wakers: set[Callable[[], object]] = set()
        self._done = False
        self._outcome: tuple[R] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._perform, args=(work,), name=name, daemon=True)
        atexit.register(self._exit)
        self._thread.start()

    @property
    def done(self) -> bool:
        """True if the work has ended, with a result or an error."""
        return self._done

    def cancel(self) -> None:
        """Ask the work to end where it can be resumed; returns at once. `result` then has the outcome so far."""
        self._cancellation.request()

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the end of the work and return its result.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            The result.

        Raises:
            TimeoutError: The work has not ended in time; it continues.
            FedpatchError: The error that ended the work.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._done, timeout_s):
                raise TimeoutError(f"{self._thread.name} has not ended after {timeout_s:g} s; it goes on")
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome[0]

    def __iter__(self) -> Iterator[E]:
        number = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._done or len(self._events) > number)  # noqa: B023 - called here
                if len(self._events) <= number:
                    return
                event = self._events[number]
            number += 1
            yield event

    async def __aiter__(self) -> AsyncIterator[E]:
        number = 0
        while await self._more_than(number):
            yield self._events[number]
            number += 1

    def __await__(self) -> Generator[Any, None, R]:
        yield from self._end().__await__()
        return self.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._thread.join()

    def _perform(self, work: Callable[[Callable[[E], None], Cancellation], R]) -> None:
        try:
            self._outcome = (work(self._emit, self._cancellation),)
        except BaseException as error:  # `result` raises it where someone waits
            self._error = error
        finally:
            atexit.unregister(self._exit)
            self._change(done=True)

    def _emit(self, event: E) -> None:
        self._change(event)

    def _change(self, *events: E, done: bool = False) -> None:
        with self._changed:
            if self._done:
                return  # an event of another thread, such as a tracker's, that outlived the work
            self._events.extend(events)
            self._done = done
            wakers = list(self._wakers)
            self._changed.notify_all()
        for wake in wakers:
            wake()

    async def _more_than(self, number: int) -> bool:
        """Wait for more events than `number`; return False where the job has ended without them."""
        with self._waking() as woken:
            while len(self._events) <= number and not self._done:
                await woken.wait()
                woken.clear()
        return len(self._events) > number

    async def _end(self) -> None:
        with self._waking() as woken:
            while not self._done:
                await woken.wait()
                woken.clear()

    @contextmanager
    def _waking(self) -> Iterator[asyncio.Event]:
        """Yield an event of the caller's loop that each change of the job sets."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        with self._changed:
            self._wakers.add(wake)
        try:
            yield woken
        finally:
            with self._changed:
                self._wakers.discard(wake)

    def _exit(self) -> None:
        self.cancel()
        self._thread.join(_EXIT_S)
