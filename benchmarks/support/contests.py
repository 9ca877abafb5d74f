"""Contests: the same round of work done in different ways, timed in turn within one run.

A machine's speed drifts, and other programs may run on it. So all contestants take turns repeatedly, and the result is the
ratio of two that were measured within seconds of each other.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from benchmarks.device.clocks import cpu_s


class Contestant(Protocol):
    """One way to do the round."""

    def play(self) -> float | None:
        """Do the next round; return its mean training loss, None if nothing is learned."""

    def pids(self) -> list[int]:
        """Return the processes that compute."""

    def close(self) -> None:
        """End the started processes."""


class Here:
    """A contestant that computes in this process, and in no other."""

    def __init__(self, play: Callable[[], float | None]) -> None:
        self.play = play

    def pids(self) -> list[int]:
        """Return this process."""
        return [os.getpid()]

    def close(self) -> None:
        """Do nothing: there is no other process."""


@dataclass(frozen=True)
class Contest:
    """A contestant, and its description.

    `name` is for JSON, `what` for people. `threads` is torch's number of threads in each of `processes` processes. `share`
    is the part of the round that is really computed; measured times are divided by it.
    """

    name: str
    what: str
    contestant: Contestant
    threads: int = 1
    processes: int = 1
    share: float = 1.0

    @property
    def cores(self) -> int:
        """Number of cores that it can use."""
        return self.threads * self.processes


@dataclass
class Measured:
    """All rounds of a contest: wall seconds, processor seconds and mean training losses, in order."""

    contest: Contest
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)


def play_in_turn(
    contests: Sequence[Contest], rounds: int, *, warm_up: bool = True, say: Callable[[str], None] = lambda line: None
) -> list[Measured]:
    """Run one round of each contest in turn, `rounds` times; if `warm_up`, each runs one unmeasured round before."""
    measured = [Measured(contest) for contest in contests]
    if warm_up:
        for contest in contests:
            say(f"warming up: {contest.what}")
            _play(contest)
    for number in range(1, rounds + 1):
        for one in measured:
            say(f"round {number} of {rounds}: {one.contest.what}")
            wall_s, used_s, loss = _play(one.contest)
            one.wall_s.append(wall_s)
            one.cpu_s.append(used_s)
            one.losses.append(loss)
    return measured


def _play(contest: Contest) -> tuple[float, float, float | None]:
    pids = contest.contestant.pids()
    threads = torch.get_num_threads()
    torch.set_num_threads(contest.threads)
    try:
        used_s, began = cpu_s(pids), time.perf_counter()
        loss = contest.contestant.play()
        return (time.perf_counter() - began) / contest.share, (cpu_s(pids) - used_s) / contest.share, loss
    finally:
        torch.set_num_threads(threads)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, least and greatest value."""
    found = list(values)
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}


def ratios(these: Sequence[float], those: Sequence[float]) -> dict[str, float]:
    """Return the ratios of `these` times to `those`, turn by turn, as median, least and greatest."""
    return spread(this / that for this, that in zip(these, those, strict=True))
