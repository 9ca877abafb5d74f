"""Updates on their way to the disk: checked and written in threads of their own, since both leave Python alone for long.

The coordinator's own thread goes on with other devices meanwhile. It takes what came of them in the order in which
they arrived, and waits wherever that could be told from doing one after the other.

Updates of the open round as they were decoded, so that the fold need not read and decode them once more.

Only a convenience: each of them lies on the disk too, and is read from there where it is not here. What is kept takes a bounded
number of bytes, however many devices there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from fedpatch.coordinator.rounds.run_effects import StoreUpdate
from fedpatch.shared.tensors.arrays import Array

R = TypeVar("R")

THREADS = 2
MOST = 4
"""Updates that may be on their way at once: each is in memory twice, as it came and decoded."""


class UpdateWritten:
    """An event: of one more update it is known whether it is on the disk."""


class UpdateWriter(Generic[R]):
    """Updates that `keep` checks and writes; `wake` is called, in any thread, when it is done with one.

    Without `threads` each is done at once, by whoever hands it in.
    """

    def __init__(
        self, keep: Callable[[StoreUpdate], R], wake: Callable[[], None] = lambda: None, threads: int = 0
    ) -> None:
        self._keep = keep
        self._wake = wake
        self._threads = ThreadPoolExecutor(threads, "fedpatch-store") if threads else None
        self._updates: deque[tuple[StoreUpdate, Future[R]]] = deque()
        self._others: deque[Future[None]] = deque()

    def submit(self, effect: StoreUpdate) -> None:
        """Hands one in; `take` makes room for it before."""
        future = self._run(lambda: self._keep(effect))
        self._updates.append((effect, future))
        future.add_done_callback(lambda _: self._wake())

    def afterwards(self, work: Callable[[], None]) -> None:
        """Something that nobody waits for; what it raises comes out of `forget`."""
        self._others.append(self._run(work))

    def holds(self, device: str) -> bool:
        """Whether an update of this device is on its way."""
        return any(effect.device == device for effect, _ in self._updates)

    def completed(self, most_left: int = MOST) -> list[tuple[StoreUpdate, R]]:
        """What came of those that are done, by arrival; waits until no more than `most_left` are left.

        Raises what `keep` raised.
        """
        done = []
        while self._updates and (len(self._updates) > most_left or self._updates[0][1].done()):
            effect, future = self._updates.popleft()
            done.append((effect, future.result()))
        return done

    def discard(self) -> None:
        """Waits for everything; updates that nobody took are nobody's any more."""
        futures: list[Future[Any]] = [future for _, future in self._updates]
        futures += self._others
        self._updates.clear()
        self._others.clear()
        for future in futures:
            future.result()

    def close(self) -> None:
        """Nothing is written any more when this returns."""
        if self._threads is not None:
            self._threads.shutdown()

    def _run(self, work: Callable[[], Any]) -> Future[Any]:
        if self._threads is not None:
            return self._threads.submit(work)
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future


MOST_BYTES = 64 * 2**20


class DecodedCache:
    """The first updates of one round that find room in `most_bytes`."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._left = self._most = most_bytes
        self._updates: dict[str, dict[str, Array]] = {}

    def keep(self, device: str, tensors: dict[str, Array]) -> None:
        """The update of `device`, in place of one that is here; it must not be changed any more."""
        self._left += _size(self._updates.pop(device, {}))
        if (size := _size(tensors)) <= self._left:
            self._left -= size
            self._updates[device] = tensors

    def of(self, device: str) -> dict[str, Array] | None:
        """None where it is not here."""
        return self._updates.get(device)

    def clear(self) -> None:
        """The round is over."""
        self._updates.clear()
        self._left = self._most


def _size(tensors: dict[str, Array]) -> int:
    return sum(array.nbytes for array in tensors.values())
