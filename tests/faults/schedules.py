"""Schedules of faults, drawn from a seed: the victim of each kill, its moment in a run, and the time of the restart.

A seed always gives the same schedule; which step a strike interrupts also depends on the speed of the machine. A moment is an
event of the fleet (tests.faults.watch) plus some milliseconds, so strikes reach each phase of a round, however long it takes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.faults.watch import Happening

STRIKES = (2, 5)
EARLY = 0.2
"""Share of the schedules in which the coordinator is killed while it creates its registry, which happens only once."""
LONGEST_EARLY_DELAY_S = 0.06
OFTEN = tuple(happening for happening in Happening if happening is not Happening.CREATED)
"""Events of every round."""
LONGEST_DELAY_S = 0.4
LONGEST_PAUSE_S = 3.0


class Victim(StrEnum):
    """The victim of a SIGKILL; `DEVICE` means agent and training process at once, as in a power cut."""

    COORDINATOR = "coordinator"
    BROKER = "broker"
    AGENT = "agent"
    DEVICE = "device"
    TRAINING = "training"


@dataclass(frozen=True)
class Strike:
    """Kill `victim` `delay_s` after the event `after` (None: at once); start it again `pause_s` later.

    The agent itself restarts its training process. `device` is empty if the victim is not part of a device. With `by_run`
    a coordinator is restarted by `fedpatch run`, else by `fedpatch resume`.
    """

    after: Happening | None
    delay_s: float
    victim: Victim
    device: str
    pause_s: float
    by_run: bool

    def __str__(self) -> str:
        who = f"{self.victim} {self.device}".rstrip()
        moment = f"{self.after or 'at once'} + {1000 * self.delay_s:.0f} ms"
        way = f" by {'run' if self.by_run else 'resume'}" if self.victim is Victim.COORDINATOR else ""
        return f"{moment}: kill {who}, back after {1000 * self.pause_s:.0f} ms{way}"


@dataclass(frozen=True)
class Schedule:
    """The strikes of one run, one after the other; `hasty` rounds do not wait for a device that is away."""

    seed: int
    hasty: bool
    strikes: tuple[Strike, ...]

    def __str__(self) -> str:
        lines = [f"  {number}. {strike}" for number, strike in enumerate(self.strikes, 1)]
        return "\n".join([f"seed {self.seed}, {'hasty' if self.hasty else 'patient'} rounds", *lines])


def draw(seed: int, devices: Sequence[str]) -> Schedule:
    rng = random.Random(seed)
    hasty = rng.random() < 0.5
    strikes = [_strike(rng, devices) for _ in range(rng.randint(*STRIKES))]
    if rng.random() < EARLY:
        delay_s = round(LONGEST_EARLY_DELAY_S * rng.random(), 3)
        strikes[0] = Strike(Happening.CREATED, delay_s, Victim.COORDINATOR, "", pause_s=0.0, by_run=True)
    return Schedule(seed, hasty, tuple(strikes))


def _strike(rng: random.Random, devices: Sequence[str]) -> Strike:
    # The coordinator has the most to lose.
    victim = rng.choices(list(Victim), weights=[4, 2, 2, 2, 1])[0]
    device = rng.choice(list(devices)) if victim in (Victim.AGENT, Victim.DEVICE, Victim.TRAINING) else ""
    return Strike(
        after=rng.choice([None, *OFTEN]),
        # Most delays are short, like the time between two steps of a program.
        delay_s=round(rng.choice([0.0, 0.02, LONGEST_DELAY_S]) * rng.random(), 3),
        victim=victim,
        device=device,
        pause_s=round(rng.choice([0.0, 0.5, LONGEST_PAUSE_S]) * rng.random(), 3),
        by_run=rng.random() < 0.5,
    )


def seeds(text: str) -> list[int]:
    """Return the seeds of a text like "7", "1,5,9" or "100..200" (inclusive); ValueError for any other text."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        found += range(int(first), int(last) + 1) if dots else [int(first)]
    return found
