"""What a person wants to see of a run at one moment, as data: made by the service, drawn by a view."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.books import Traffic
from coordinator.engine import Engine
from coordinator.records import RoundRecord
from coordinator.round_states import State

# The slowest first.
_UNDER_WAY = (State.LOST, State.INVITED, State.ACCEPTED, State.TRAINING, State.UPLOADING)
_OUT = (State.FAILED, State.DECLINED, State.LATE)
_RANKS = {state: rank for rank, state in enumerate((*_UNDER_WAY, *_OUT, State.REPORTED))}


@dataclass(frozen=True)
class DeviceLine:
    """A participant of the open round. `progress` is the fraction of its training that is done."""

    device: str
    state: State
    reason: str
    progress: float


@dataclass(frozen=True)
class Others:
    """So many participants that are in the same state for the same reason."""

    state: State
    reason: str
    count: int


@dataclass(frozen=True)
class Snapshot:
    """The run now. `phase` is "waiting" between rounds, else the round's. User accuracies are values of the task's metric.

    `reported` of `needed` updates make the quorum, expected in `eta_s` seconds (None: not known yet). While waiting,
    `present` of `wanted` devices are there and willing, `starting` have not loaded their task yet, `unwilling` says why
    others are not, and the next round begins in `pause_s` at the earliest; `missing` names devices that count and cannot be
    asked, each with why. `records` are the rounds so far. Whoever is told of a run by messages does not get everything:
    participants that are not among its `devices` are counted in `others`, and `earlier` are user accuracies of the rounds
    before its `records`. Bytes are those of the open round so far, as they travelled.
    """

    run: str
    round: int
    rounds: int
    target_ua: float | None
    phase: str
    present: int
    wanted: int
    devices: tuple[DeviceLine, ...] = ()
    unwilling: Mapping[str, int] = field(default_factory=dict)
    reported: int = 0
    needed: int = 0
    user_accuracy: float | None = None
    eta_s: float | None = None
    elapsed_s: float = 0.0
    pause_s: float = 0.0
    records: tuple[RoundRecord, ...] = ()
    others: tuple[Others, ...] = ()
    earlier: tuple[float, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    starting: int = 0
    missing: str = ""

    @property
    def cohort(self) -> int:
        """How many devices were asked."""
        return len(self.devices) + sum(one.count for one in self.others)


def slowest(devices: Iterable[DeviceLine], most: int) -> list[DeviceLine]:
    """The `most` that a person wants to see first: who is waited for, then who is out, then the others."""
    return heapq.nsmallest(most, devices, key=lambda one: (_RANKS[one.state], one.progress))


def starting_words(snapshot: Snapshot) -> str:
    """How many devices are loading their task, "" where none is."""
    return f"{snapshot.starting} starting" if snapshot.starting else ""


class View(Protocol):
    """Shows a run to a person. Never on stdout: that is for results."""

    def show(self, snapshot: Snapshot) -> None:
        """Called after every event; must be cheap, and draw at its own pace."""

    def say(self, line: str) -> None:
        """Something worth a line of its own."""


def take_snapshot(engine: Engine, now: float) -> Snapshot:
    """The state of `engine` at `now`."""
    spec, current = engine.spec, engine.open
    members = engine.fleet.members
    lines: list[DeviceLine] = []
    if current is not None:
        for device, participant in sorted(current.round.participants.items()):
            member = members.get(device)
            training = participant.state is State.TRAINING and member is not None
            progress = member.progress if training and member else 0.0
            lines.append(DeviceLine(device, participant.state, participant.reason, progress))
    traffic = current.traffic() if current else Traffic(0, 0)
    return Snapshot(
        run=spec.run,
        round=engine.last_round,
        rounds=spec.rounds,
        target_ua=spec.target_ua,
        phase=current.round.phase.value if current else "waiting",
        devices=tuple(lines),
        present=engine.present,
        wanted=engine.wanted(),
        unwilling=engine.fleet.unwilling() if current is None else {},
        reported=len(current.reports) if current else 0,
        needed=current.round.needed if current else 0,
        user_accuracy=current.user_accuracy() if current else None,
        eta_s=engine.eta_s(now),
        elapsed_s=current.round.elapsed_s(now) if current else 0.0,
        pause_s=engine.pause_s(now),
        records=tuple(engine.records),
        bytes_down=traffic.down,
        bytes_up=traffic.up,
        starting=engine.fleet.starting,
        missing=_missing(engine),
    )


def _missing(engine: Engine) -> str:
    waits = engine.open is None and engine.present < engine.wanted()
    return engine.fleet.missing_words() if waits else ""
