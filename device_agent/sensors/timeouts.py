"""A question with a time limit for its answer: it runs in a thread of its own, one at a time.

A disk, a driver, a name server or another program may never answer. A thread that waits for such a source cannot be ended, so
it is left running, and the question is not asked again before the thread has returned: there is never more than one for each
question. If a question took long without a result, later calls do not wait for it, until one has an answer or fails at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from fedpatch.shared.errors import FedpatchError

QUICK_S = 0.5

P = ParamSpec("P")
T = TypeVar("T")


class FactUnavailable(FedpatchError):
    """A source has no answer; the message has the reason, for the owner."""


class _Asked(Generic[T]):
    """One run of a question, with its result once `done` is set."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.done = threading.Event()
        self.answers: list[T] = []
        self.failure: FactUnavailable | None = None
        self.took_s = 0.0

    def run(self, ask: Callable[[], T]) -> None:
        """Run the question, and keep the answer or the reason why there is none."""
        try:
            self.answers.append(ask())
        except FactUnavailable as error:
            self.failure = error
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            self.failure = FactUnavailable(f"{place}{error.strerror or error}")
        except Exception as error:  # an unexpected error of a source must not stop the device from working
            self.failure = FactUnavailable(f"{type(error).__name__}: {error}")
        finally:
            self.took_s = time.monotonic() - self.began_s
            self.done.set()


class TimedQuestion(Generic[P, T]):
    """`name` is the question, for people; `empty` returns whether an answer has no content. For one caller at a time."""

    def __init__(self, name: str, ask: Callable[P, T], empty: Callable[[T], bool] = lambda _: False) -> None:
        self._name = name
        self._ask = ask
        self._empty = empty
        self._asked: _Asked[T] | None = None
        self._stuck = False
        self._in_vain_s = 0.0

    def begin(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Start the question, unless an earlier run has not returned."""
        last = self._asked
        self._stuck = last is not None and not last.done.is_set()
        if self._stuck:
            return
        self._in_vain_s = self._waited_in_vain_s(last) if last else 0.0
        asked = self._asked = _Asked[T]()
        run = threading.Thread(
            target=asked.run, args=(lambda: self._ask(*args, **kwargs),), name=f"facts-{self._name}", daemon=True
        )
        try:
            run.start()
        except RuntimeError as error:  # no more threads on this machine
            asked.failure = FactUnavailable(f"{self._name}: {error}")
            asked.done.set()

    def answer(self, within_s: float) -> T:
        """Return the answer to the last `begin`; waits `within_s` seconds at most, then raises FactUnavailable."""
        asked = self._asked
        if asked is None:
            raise FactUnavailable(f"{self._name} was not asked")
        if self._stuck or not asked.done.wait(0.0 if self._in_vain_s else max(0.0, within_s)):
            waited_s = self._in_vain_s or time.monotonic() - asked.began_s
            raise FactUnavailable(f"{self._name} has not answered for {waited_s:.1f} s")
        if asked.failure is not None:
            raise asked.failure
        return asked.answers[0]

    def _waited_in_vain_s(self, last: _Asked[T]) -> float:
        """Return how long the last run took without a result; 0 if it was quick or had a result."""
        return last.took_s if last.took_s > QUICK_S and all(map(self._empty, last.answers)) else 0.0
