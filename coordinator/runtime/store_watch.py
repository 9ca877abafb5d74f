"""A thread that reports silent stores during a run, because the run's own thread waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedpatch.shared.app.store_waits import StoreWaits

LOOK_S = 1.0


@contextmanager
def watching(waits: StoreWaits, publish: Callable[[str], None]) -> Iterator[None]:
    """Look at the requests once a second, within a `with`; `publish` takes the words for a silent store, then "".

    Args:
        publish: Called in the thread.
    """
    ended = threading.Event()

    def watch() -> None:
        last = ""
        while not ended.wait(LOOK_S):
            waits.look()
            words = waits.words()
            if words or last:
                publish(words)
            last = words

    thread = threading.Thread(target=watch, name="store-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
