"""A question whose answer is waited for only so long: it is asked in a thread of its own, one at a time.

A disk, a driver, a name server or another program may never answer. A thread that waits for one cannot be ended, so it is
left behind, and the question is not asked again before it has come back: there is never more than one for each question.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from shared.errors import FedpatchError

P = ParamSpec("P")
T = TypeVar("T")


class CannotTell(FedpatchError):
    """A source has no answer; the message says why, for the owner."""


class _Asked(Generic[T]):
    """One asking: what came of it, once `done`."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.done = threading.Event()
        self.answers: list[T] = []
        self.failure = ""

    def run(self, ask: Callable[[], T]) -> None:
        """Ask, and keep the answer or why there is none."""
        try:
            self.answers.append(ask())
        except CannotTell as error:
            self.failure = str(error)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            self.failure = f"{place}{error.strerror or error}"
        except Exception as error:  # a source that surprises us is no reason to stop a device from working
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self.done.set()


class Bounded(Generic[P, T]):
    """`name` is what is asked, in words. For one caller at a time."""

    def __init__(self, name: str, ask: Callable[P, T]) -> None:
        self._name = name
        self._ask = ask
        self._asked: _Asked[T] | None = None
        self._stuck = False

    def begin(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Ask, unless an earlier asking has not come back."""
        self._stuck = self._asked is not None and not self._asked.done.is_set()
        if self._stuck:
            return
        asked = self._asked = _Asked[T]()
        run = threading.Thread(
            target=asked.run, args=(lambda: self._ask(*args, **kwargs),), name=f"facts-{self._name}", daemon=True
        )
        try:
            run.start()
        except RuntimeError as error:  # no more threads on this machine
            asked.failure = f"{self._name}: {error}"
            asked.done.set()

    def answer(self, within_s: float) -> T:
        """What was answered to the last `begin`; waits `within_s` seconds at most, and raises CannotTell."""
        asked = self._asked
        if asked is None:
            raise CannotTell(f"{self._name} was not asked")
        if self._stuck or not asked.done.wait(max(0.0, within_s)):
            raise CannotTell(f"{self._name} has not answered for {time.monotonic() - asked.began_s:.1f} s")
        if not asked.answers:
            raise CannotTell(asked.failure)
        return asked.answers[0]
