"""The status of a run as one message: built from the engine, drawn by the live view, and read by watchers.

The message has a bounded size: of a large fleet it names the slowest devices and counts the others.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import UNSET

from fedpatch.coordinator.rounds.missing_devices import missing_words
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.round_record_builder import RoundTraffic
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.shared.app.formatting import printable
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

# States in the order in which a person wants to see their devices: the slowest first.
_UNDER_WAY = (State.LOST, State.INVITED, State.ACCEPTED, State.TRAINING, State.UPLOADING)
_OUT = (State.FAILED, State.DECLINED, State.LATE)
_RANKS: dict[str, int] = {state: rank for rank, state in enumerate((*_UNDER_WAY, *_OUT, State.REPORTED))}

_MAX_SECONDS = 1e9
_MAX_WORD = 64
MAX_TEXT = 500

EMPTY_STATUS = RunStatus(
    phase="waiting",
    stopped="",
    rounds_in_all=0,
    target_ua=None,
    metric=ACCURACY,
    lower_is_better=False,
    devices=(),
    others=(),
    present=0,
    wanted=0,
    unwilling=(),
    reported=0,
    needed=0,
    user_accuracy=None,
    eta_s=None,
    elapsed_s=0.0,
    pause_s=0.0,
    rounds=(),
    earlier=(),
    bytes_down=0,
    bytes_up=0,
)
"""The status before any data of a run are known."""


@dataclass(frozen=True)
class StatusMessage:
    """A `RunStatus` with the run and the round that its envelope names.

    `records` are the completed rounds, for the texts about rounds. In the coordinator they are all rounds of the run in full,
    in a watcher those of `status.rounds` with the fields that the message has.
    """

    run: str
    round: int
    status: RunStatus
    records: tuple[RoundRecord, ...] = ()


class View(Protocol):
    """Shows a run to a person. It never writes to stdout, which is for results."""

    def show(self, message: StatusMessage) -> None:
        """Show the status. Called after every event: it must be cheap, and draw at its own pace."""

    def say(self, line: str) -> None:
        """Print a line of text."""


def status_message(engine: Engine, now: float, phase: str = "") -> StatusMessage:
    """Build the status of a run.

    Args:
        engine: The run. It is only read.
        now: Monotonic time, in seconds.
        phase: Shown in place of the phase of the open round, for example "starting".

    Returns:
        The status, within the limits of the wire.
    """
    spec, current = engine.spec, engine.open
    traffic = current.traffic() if current else RoundTraffic(0, 0)
    waits = current is None and engine.present < engine.required_devices()
    status = replace(
        EMPTY_STATUS,
        phase=phase or (current.round.phase.value if current else "waiting"),
        stopped=_word(engine.stopped or ""),
        rounds_in_all=engine.rounds_in_all,
        target_ua=spec.target_ua,
        present=engine.present,
        wanted=engine.required_devices(),
        reported=len(current.reports) if current else 0,
        needed=current.round.needed if current else 0,
        user_accuracy=current.user_accuracy() if current else None,
        eta_s=engine.eta_s(now),
        elapsed_s=current.round.elapsed_s(now) if current else 0.0,
        pause_s=engine.pause_s(now),
        round_bytes_down=traffic.down,
        round_bytes_up=traffic.up,
        starting=engine.fleet.starting,
        missing=_missing(engine) if waits else "",
        waits_s=_seconds(engine.wait_s(now)) if waits else UNSET,
    )
    records = tuple(engine.records)
    unwilling = engine.fleet.unwilling() if current is None else {}
    status = bounded(status, devices=_participants(engine), records=records, unwilling=unwilling)
    return StatusMessage(spec.run, engine.last_round, status, records)


def _missing(engine: Engine) -> str:
    """Return which devices are missing, after the devices whose presence is not true."""
    words = "; ".join(filter(None, (*engine.fleet.false_presence.words(), missing_words(engine.fleet))))
    return words if len(words) <= MAX_TEXT else f"{words[: MAX_TEXT - 3]}..."


def bounded(
    status: RunStatus, *, devices: Sequence[DeviceStatus], records: Sequence[RoundRecord], unwilling: Mapping[str, int]
) -> RunStatus:
    """Add devices, rounds and reasons to a status and bring it within the limits of the wire.

    Args:
        status: Its own devices, rounds and reasons are replaced.
        devices: All participants of the open round. The slowest `MAX_DEVICES` are named, the others counted.
        records: All completed rounds, the oldest first. The last `MAX_ROUNDS` are included whole, of the `MAX_EARLIER` before
            them only the user accuracies.
        unwilling: Devices that cannot take part now, counted by reason. The most frequent `MAX_REASONS` are kept.

    Returns:
        A status that the codec accepts.
    """
    first = max(0, len(records) - MAX_ROUNDS)
    named = slowest(devices, MAX_DEVICES)
    return replace(
        status,
        target_ua=_measure(status.target_ua),
        metric=records[-1].metric if records else ACCURACY,
        lower_is_better=bool(records) and records[-1].metric_goal == "min",
        devices=tuple(
            replace(device, device=_word(device.device), reason=_word(device.reason))
            for device in sorted(named, key=lambda device: device.device)
        ),
        others=_others(devices, named),
        unwilling=_reasons(unwilling),
        user_accuracy=_measure(status.user_accuracy),
        eta_s=None if status.eta_s is None else _seconds(status.eta_s),
        elapsed_s=_seconds(status.elapsed_s),
        pause_s=_seconds(status.pause_s),
        rounds=tuple(map(_round, records[first:])),
        earlier=_earlier(records, first),
        bytes_down=sum(record.bytes_down for record in records),
        bytes_up=sum(record.bytes_up for record in records),
        missing=status.missing[:MAX_TEXT],
    )


def received_message(envelope: Envelope, status: RunStatus) -> StatusMessage:
    """Read a status from the network. Unknown states, of a newer coordinator, are left out; control characters are replaced."""
    status = replace(
        status,
        devices=tuple(device for device in status.devices if device.state in _RANKS),
        others=tuple(count for count in status.others if count.state in _RANKS),
        missing=printable(status.missing),
        silent_stores=printable(status.silent_stores) if status.silent_stores else UNSET,
    )
    return StatusMessage(
        envelope.run, envelope.round, status, tuple(_record(round_, status) for round_ in status.rounds)
    )


def slowest(devices: Iterable[DeviceStatus], most: int) -> list[DeviceStatus]:
    """At most `most` devices: first those that the round waits for, then those that are out, then those that reported."""
    return heapq.nsmallest(most, devices, key=lambda device: (_RANKS[device.state], device.progress))


def reason_counts(reasons: Iterable[ReasonCount]) -> dict[str, int]:
    """Devices by reason."""
    return {reason.reason: reason.count for reason in reasons}


def _participants(engine: Engine) -> list[DeviceStatus]:
    if engine.open is None:
        return []
    devices = []
    for device, participant in sorted(engine.open.round.participants.items()):
        member = engine.fleet.members.get(device)
        progress = member.progress if member and participant.state is State.TRAINING else 0.0
        devices.append(DeviceStatus(device, participant.state, participant.reason, progress))
    return devices


def _others(devices: Sequence[DeviceStatus], named: Sequence[DeviceStatus]) -> tuple[StateCount, ...]:
    """Count the devices that are not `named`. If there are too many reasons, the rarest are counted without their reason."""
    if len(named) == len(devices):
        return ()
    names = {device.device for device in named}
    counts = Counter((device.state, _word(device.reason)) for device in devices if device.device not in names)
    room = MAX_TALLIES - len(State)
    kept = dict(counts.most_common(room))
    for (state, _), count in counts.most_common()[room:]:
        kept[state, ""] = kept.get((state, ""), 0) + count
    return tuple(StateCount(state, reason, count) for (state, reason), count in sorted(kept.items()))


def _earlier(records: Sequence[RoundRecord], end: int) -> tuple[float, ...]:
    """The last user accuracies of the rounds before index `end` that count: a failed round measured only some devices."""
    counting = [one for one in records[max(0, end - MAX_EARLIER) : end] if one.outcome == "aggregated"]
    measured = (_measure(record.user_accuracy) for record in counting)
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


def _record(received: RoundStatus, status: RunStatus) -> RoundRecord:
    """A record with the fields of the message. The message has no times of single phases, so all time counts as training."""
    return RoundRecord(
        round=received.round,
        outcome=received.outcome,
        failure=received.failure,
        cohort=received.cohort,
        accepted=received.cohort,
        declined=sum(reason.count for reason in received.declined),
        reported=received.reported,
        user_accuracy=received.user_accuracy,
        user_accuracy_min=received.user_accuracy_min,
        user_accuracy_after=received.user_accuracy_after,
        phase_seconds=PhaseSeconds(train=received.seconds),
        bytes_down=received.bytes_down,
        bytes_up=received.bytes_up,
        decline_reasons=reason_counts(received.declined),
        failures=reason_counts(received.failed),
        refused=reason_counts(received.refused),
        late=received.late,
        metric=printable(status.metric).strip()[:MAX_NAME].strip() or "metric",
        metric_goal="min" if status.lower_is_better else "max",
    )


def _reasons(counts: Mapping[str, int]) -> tuple[ReasonCount, ...]:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ReasonCount(_word(reason), count) for reason, count in ranked[:MAX_REASONS])


def _word(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:_MAX_WORD]


def _seconds(value: float) -> float:
    return min(max(0.0, value), _MAX_SECONDS)


def _measure(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) <= MAX_MEASURE else None


TIMES = ("eta_s", "elapsed_s", "pause_s")
"""Fields of a status that change with time alone."""


def timeless(status: RunStatus) -> RunStatus:
    """Return the status without the fields that change with time alone."""
    return replace(status, eta_s=None, elapsed_s=0.0, pause_s=0.0)
