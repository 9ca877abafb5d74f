"""What a person wants to see of a run at one moment, as data: made by the service, drawn by a view.

A run's snapshot as the message that watchers get, of bounded size, and what they make of it.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_record_builder import RoundTraffic
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_records import PhaseSeconds, RoundRecord
from fedpatch.shared.tasks.metric_spec import ACCURACY, MAX_NAME
from fedpatch.shared.wire.field_types import MAX_MEASURE
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.run_status import (
    MAX_DEVICES,
    MAX_EARLIER,
    MAX_REASONS,
    MAX_ROUNDS,
    MAX_TALLIES,
    DeviceStatus,
    ReasonCount,
    RoundStatus,
    RunStatus,
    StateCount,
)

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
    traffic = current.traffic() if current else RoundTraffic(0, 0)
    return Snapshot(
        run=spec.run,
        round=engine.last_round,
        rounds=spec.rounds,
        target_ua=spec.target_ua,
        phase=current.round.phase.value if current else "waiting",
        devices=tuple(lines),
        present=engine.present,
        wanted=engine.required_devices(),
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
    waits = engine.open is None and engine.present < engine.required_devices()
    return engine.fleet.missing_words() if waits else ""


_MAX_SECONDS = 1e9
_MAX_WORD = 64
_MAX_TEXT = 500


def status_of(snapshot: Snapshot, stopped: str = "") -> RunStatus:
    """The message that says what `snapshot` shows; `stopped` is why the run is over."""
    records = snapshot.records
    first_told = max(0, len(records) - MAX_ROUNDS)
    devices = slowest(snapshot.devices, MAX_DEVICES)
    return RunStatus(
        phase=_word(snapshot.phase),
        stopped=_word(stopped),
        rounds_in_all=snapshot.rounds,
        target_ua=_measure(snapshot.target_ua),
        metric=records[-1].metric if records else ACCURACY,
        lower_is_better=bool(records) and records[-1].metric_goal == "min",
        devices=tuple(
            DeviceStatus(_word(one.device), one.state, _word(one.reason), one.progress)
            for one in sorted(devices, key=lambda one: one.device)
        ),
        others=_others(snapshot, devices),
        present=snapshot.present,
        wanted=snapshot.wanted,
        unwilling=_reasons(snapshot.unwilling),
        reported=snapshot.reported,
        needed=snapshot.needed,
        user_accuracy=_measure(snapshot.user_accuracy),
        eta_s=None if snapshot.eta_s is None else _seconds(snapshot.eta_s),
        elapsed_s=_seconds(snapshot.elapsed_s),
        pause_s=_seconds(snapshot.pause_s),
        rounds=tuple(map(_round, records[first_told:])),
        earlier=_earlier(records, first_told),
        bytes_down=sum(one.bytes_down for one in records),
        bytes_up=sum(one.bytes_up for one in records),
        round_bytes_down=snapshot.bytes_down,
        round_bytes_up=snapshot.bytes_up,
        starting=snapshot.starting,
        missing=snapshot.missing[:_MAX_TEXT],
    )


def snapshot_of(envelope: Envelope, status: RunStatus) -> Snapshot:
    """What the message shows. What a newer coordinator has more words for than this program is left out."""
    known = set(State)
    return Snapshot(
        run=envelope.run,
        round=envelope.round,
        rounds=status.rounds_in_all,
        target_ua=status.target_ua,
        phase=status.phase,
        devices=tuple(
            DeviceLine(one.device, State(one.state), one.reason, one.progress)
            for one in status.devices
            if one.state in known
        ),
        present=status.present,
        wanted=status.wanted,
        unwilling=_mapping(status.unwilling),
        reported=status.reported,
        needed=status.needed,
        user_accuracy=status.user_accuracy,
        eta_s=status.eta_s,
        elapsed_s=status.elapsed_s,
        pause_s=status.pause_s,
        records=tuple(_record(one, status) for one in status.rounds),
        others=tuple(Others(State(one.state), one.reason, one.count) for one in status.others if one.state in known),
        earlier=status.earlier,
        bytes_down=status.round_bytes_down,
        bytes_up=status.round_bytes_up,
        starting=status.starting,
        missing="".join(char if char.isprintable() else "?" for char in status.missing),
    )


def _others(snapshot: Snapshot, told: Sequence[DeviceLine]) -> tuple[StateCount, ...]:
    """Those that are not among `told`, counted; of more reasons than fit, the rarest are counted without them."""
    if len(told) == len(snapshot.devices):
        return ()
    names = {one.device for one in told}
    counts = Counter((one.state, _word(one.reason)) for one in snapshot.devices if one.device not in names)
    room = MAX_TALLIES - len(State)
    kept = dict(counts.most_common(room))
    for (state, _), count in counts.most_common()[room:]:
        kept[state, ""] = kept.get((state, ""), 0) + count
    return tuple(StateCount(state, reason, count) for (state, reason), count in sorted(kept.items()))


def _earlier(records: Sequence[RoundRecord], end: int) -> tuple[float, ...]:
    """User accuracies of the rounds before number `end` of `records`, the last of them."""
    window = records[max(0, end - MAX_EARLIER) : end]
    measured = (_measure(one.user_accuracy) for one in window)
    return tuple(value for value in measured if value is not None)


def _round(record: RoundRecord) -> RoundStatus:
    return RoundStatus(
        round=record.round,
        outcome=_word(record.outcome),
        failure=_word(record.failure),
        cohort=record.cohort,
        reported=record.reported,
        user_accuracy=_measure(record.user_accuracy),
        user_accuracy_min=_measure(record.user_accuracy_min),
        user_accuracy_after=_measure(record.user_accuracy_after),
        seconds=_seconds(record.seconds),
        bytes_down=record.bytes_down,
        bytes_up=record.bytes_up,
        declined=_reasons(record.decline_reasons),
        failed=_reasons(record.failures),
        refused=_reasons(record.refused),
        late=record.late,
    )


def _record(told: RoundStatus, status: RunStatus) -> RoundRecord:
    """A record as far as it was told; which phase took its time was not, and nobody shows it."""
    return RoundRecord(
        round=told.round,
        outcome=told.outcome,
        failure=told.failure,
        cohort=told.cohort,
        accepted=told.cohort,
        declined=sum(one.count for one in told.declined),
        reported=told.reported,
        user_accuracy=told.user_accuracy,
        user_accuracy_min=told.user_accuracy_min,
        user_accuracy_after=told.user_accuracy_after,
        phase_seconds=PhaseSeconds(train=told.seconds),
        bytes_down=told.bytes_down,
        bytes_up=told.bytes_up,
        decline_reasons=_mapping(told.declined),
        failures=_mapping(told.failed),
        refused=_mapping(told.refused),
        late=told.late,
        metric=_metric(status.metric),
        metric_goal="min" if status.lower_is_better else "max",
    )


def _reasons(counts: Mapping[str, int]) -> tuple[ReasonCount, ...]:
    """The most frequent; those for which there is no room are lost."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ReasonCount(_word(reason), count) for reason, count in ranked[:MAX_REASONS])


def _mapping(reasons: Sequence[ReasonCount]) -> dict[str, int]:
    return {one.reason: one.count for one in reasons}


def _word(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:_MAX_WORD]


def _metric(name: str) -> str:
    """`name` as a metric can be called, whoever wrote it."""
    printable = "".join(char if char.isprintable() else "?" for char in name)
    return printable.strip()[:MAX_NAME].strip() or "metric"


def _seconds(value: float) -> float:
    return min(max(0.0, value), _MAX_SECONDS)


def _measure(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) <= MAX_MEASURE else None
