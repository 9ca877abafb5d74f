"""What a link wants to receive, whether or not it is connected at the moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Wish:
    """Ask the broker for messages on `filters` (or, where not `wanted`, for no more of them)."""

    wanted: bool
    filters: tuple[str, ...]


class Subscriptions:
    """The filters wanted now, and what the broker has still to be told of them."""

    def __init__(self) -> None:
        self.filters: tuple[str, ...] = ()
        self._wishes: deque[Wish] = deque()

    def add(self, filters: tuple[str, ...]) -> None:
        """Want `filters`; to want one again makes the broker send its retained messages again."""
        for one in filters:
            _check(one)
        self.filters = tuple(dict.fromkeys((*self.filters, *filters)))
        self._wishes.append(Wish(True, filters))

    def remove(self, filters: tuple[str, ...]) -> None:
        """Want `filters` no more."""
        self.filters = tuple(one for one in self.filters if one not in filters)
        self._wishes.append(Wish(False, filters))

    def connected(self) -> None:
        """Tell a new connection everything; a session that the broker kept may hold what was removed meanwhile."""
        removed = [one for wish in self._wishes if not wish.wanted for one in wish.filters]
        self._wishes.clear()
        self._wishes.append(Wish(False, tuple(one for one in removed if one not in self.filters)))
        self._wishes.append(Wish(True, self.filters))

    def next(self) -> Wish | None:
        """What to tell the broker next."""
        while self._wishes:
            wish = self._wishes.popleft()
            if wish.filters:
                return wish
        return None

    def want(self, topic: str) -> bool:
        """Whether `topic` matches a filter."""
        return any(_matches(one, topic) for one in self.filters)


def _check(pattern: str) -> None:
    # Checked before it reaches a connection, which a broker would close at each attempt to subscribe.
    levels = pattern.split("/")
    wild = [one for one in levels if "+" in one or "#" in one]
    if not pattern or any(one not in ("+", "#") for one in wild) or "#" in levels[:-1]:
        raise ValueError(f"not a topic filter: {pattern!r}")


def _matches(pattern: str, topic: str) -> bool:
    wanted, levels = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(one in ("+", level) for one, level in zip(wanted, levels, strict=True))
