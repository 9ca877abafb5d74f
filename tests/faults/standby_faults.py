"""Faults of the parts of a fleet with a standby coordinator, drawn from seeds."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

STRIKES = (3, 5)
_LONGEST_PAUSE_S = 12.0


class Part(StrEnum):
    """A part of the scene."""

    LEADER = "leader"
    STANDBY = "standby"
    DATABASE = "database"
    STORE = "object store"
    BROKER = "broker node"
    RELAY = "relay"


class Action(StrEnum):
    """The fault of a part."""

    KILL = "kill"
    PAUSE = "pause"
    TERMINATE = "terminate"
    END_SESSIONS = "end the sessions of"


_WEIGHTS = {
    Part.LEADER: {Action.KILL: 3, Action.PAUSE: 3, Action.TERMINATE: 4},
    Part.STANDBY: {Action.KILL: 2, Action.PAUSE: 2},
    Part.DATABASE: {Action.KILL: 3, Action.PAUSE: 2, Action.END_SESSIONS: 2},
    Part.STORE: {Action.KILL: 2, Action.PAUSE: 2},
    Part.BROKER: {Action.KILL: 4, Action.PAUSE: 3},
    Part.RELAY: {Action.KILL: 4, Action.PAUSE: 3},
}
FAULTS = {(part, action): weight for part, actions in _WEIGHTS.items() for action, weight in actions.items()}
"""All faults, with their weights."""


@dataclass(frozen=True)
class Strike:
    """A fault, `delay_s` after a leader works; the part is back after `pause_s`. `broker` is the index of a broker."""

    part: Part
    action: Action
    delay_s: float
    pause_s: float
    broker: int

    def __str__(self) -> str:
        return f"{self.action} the {self.part}"


def draw(seed: int, brokers: int) -> list[Strike]:
    """Return the strikes of a seed."""
    rng = random.Random(seed)
    return [
        Strike(
            *rng.choices(list(FAULTS), list(FAULTS.values()))[0],
            delay_s=round(rng.uniform(0.1, 3.0), 2),
            pause_s=round(rng.uniform(0.2, _LONGEST_PAUSE_S), 2),
            broker=rng.randrange(brokers),
        )
        for _ in range(rng.randint(*STRIKES))
    ]
