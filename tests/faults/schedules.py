"""Schedules of faults, drawn from a seed: what is killed, at which moment of a run, and when it comes back.

A seed gives the same schedule for ever; what a strike hits also depends on how fast the machine is. Moments are told by what
the fleet does (tests.faults.watch) and some milliseconds more: so each phase of a round is struck, however long it takes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.faults.watch import Happening

STRIKES = (2, 5)
EARLY = 0.2
"""Share of the schedules in which the coordinator is killed while it makes its registry, which happens but once."""
LONGEST_EARLY_DELAY_S = 0.06
OFTEN = tuple(happening for happening in Happening if happening is not Happening.CREATED)
"""What happens in every round."""
LONGEST_DELAY_S = 0.4
LONGEST_PAUSE_S = 3.0


class Victim(StrEnum):
    """What is killed with SIGKILL; `DEVICE` is agent and training process at once, as in a power cut."""

    COORDINATOR = "coordinator"
    BROKER = "broker"
    AGENT = "agent"
    DEVICE = "device"
    TRAINING = "training"


@dataclass(frozen=True)
class Strike:
    """Once `after` was seen (None: at once) and `delay_s` more have passed, kill; start it again `pause_s` later.

    A training process is started again by its agent, and a `device` is named only where one is meant. A coordinator comes
    back by `fedpatch run` where `by_run`, else by `fedpatch resume`.
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
    """The strikes of one run, each looked for once the one before has fallen; `hasty` rounds leave behind who is away."""

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
        # Most right away: what is between two steps of a program takes no longer.
        delay_s=round(rng.choice([0.0, 0.02, LONGEST_DELAY_S]) * rng.random(), 3),
        victim=victim,
        device=device,
        pause_s=round(rng.choice([0.0, 0.5, LONGEST_PAUSE_S]) * rng.random(), 3),
        by_run=rng.random() < 0.5,
    )


def seeds(text: str) -> list[int]:
    """The seeds of a text like "7", "1,5,9" or "100..200", whose end counts; ValueError for any other."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        found += range(int(first), int(last) + 1) if dots else [int(first)]
    return found
