"""A run's snapshot as the message that watchers get, of bounded size, and what they make of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from coordinator.records import PhaseSeconds, RoundRecord
from coordinator.round_states import State
from coordinator.snapshot import DeviceLine, Others, Snapshot, slowest
from shared.field_types import MAX_MEASURE
from shared.messages import Envelope
from shared.metric_terms import ACCURACY, MAX_NAME
from shared.run_status import (
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
