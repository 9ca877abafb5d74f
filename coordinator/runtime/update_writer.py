"""Threads that check and write the updates of a round; the results come in the order in which the updates arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import takewhile
from typing import Any, Generic, TypeVar

from fedpatch.coordinator.rounds.run_effects import StoreUpdate

R = TypeVar("R")


MAX_IN_PROGRESS = 16
"""Updates that may be in progress at once."""


IN_PROGRESS_BYTES = 20 * 2**20
"""Limit of decoded updates in progress, in bytes: each is in memory twice, as received and decoded."""


class UpdateWriter(Generic[R]):
    """Runs `write` on updates, in the order in which they are submitted.

    Args:
        write: Checks and writes one update.
        wake: Called in any thread when `write` is done with an update.
        executor: Runs `write`; None: `submit` runs it.
    """

    def __init__(
        self,
        write: Callable[[StoreUpdate], R],
        wake: Callable[[], None] = lambda: None,
        executor: Executor | None = None,
    ) -> None:
        self._write = write
        self._wake = wake
        self._executor = executor
        self._updates: deque[tuple[StoreUpdate, Future[R]]] = deque()
        self._others: deque[Future[None]] = deque()

    def submit(self, effect: StoreUpdate) -> None:
        """Begin to write an update; the caller makes room first (`completed`)."""
        future = self._run(lambda: self._write(effect))
        self._updates.append((effect, future))
        future.add_done_callback(lambda _: self._wake())

    def run_later(self, work: Callable[[], None]) -> None:
        """Run `work` without waiting for it; `discard` raises its exception."""
        self._others.append(self._run(work))

    @property
    def in_progress(self) -> int:
        """The number of updates that were submitted and not returned by `completed` yet."""
        return len(self._updates)

    @property
    def done(self) -> int:
        """The number of updates that `completed` returns without waiting."""
        return sum(1 for _ in takewhile(lambda one: one[1].done(), self._updates))

    def holds(self, device: str) -> bool:
        """Return whether an update of `device` is in progress."""
        return any(effect.device == device for effect, _ in self._updates)

    def completed(self, most_left: int = MAX_IN_PROGRESS) -> list[tuple[StoreUpdate, R]]:
        """Return the results of updates that are done, by arrival; wait until at most `most_left` are in progress.

        Raises the exception of `write`.
        """
        done = []
        while self._updates and (len(self._updates) > most_left or self._updates[0][1].done()):
            effect, future = self._updates.popleft()
            done.append((effect, future.result()))
        return done

    def discard(self) -> None:
        """Wait for all work, and drop the results that `completed` has not returned."""
        futures: list[Future[Any]] = [future for _, future in self._updates]
        futures += self._others
        self._updates.clear()
        self._others.clear()
        for future in futures:
            future.result()

    def _run(self, work: Callable[[], Any]) -> Future[Any]:
        if self._executor is not None:
            return self._executor.submit(work)
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future
