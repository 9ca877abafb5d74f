"""What the metrics say of the devices: how many are in which state, and the series of single ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coordinator.device_series import DeviceRow, DeviceSeries
from coordinator.effects import Count, Effect, Open, Record
from coordinator.engine import Engine
from coordinator.fleet import REVOKED, Member
from coordinator.metrics import CONDITIONS, FLEET_STATES, Metrics
from coordinator.open_round import OpenRound
from coordinator.records import RoundRecord
from coordinator.round_states import State
from coordinator.vitals_meter import VitalsMeter, values_of

_TOLD_WHY = (State.DECLINED, State.FAILED, State.LATE, State.LOST)


@dataclass
class History:
    """A device since this coordinator began. `slow_s` is how long it was last waited for, whatever came of it."""

    online: bool = False
    declines: int = 0
    failures: int = 0
    disconnects: int = 0
    slow_s: float = 0.0
    round_s: float | None = None
    download_s: float | None = None
    train_s: float | None = None
    user_accuracy_before: float | None = None
    user_accuracy_after: float | None = None


def standing(member: Member, task: str, *, benched: bool = False) -> str:
    """One of FLEET_STATES; `benched` says that the device is an offender. Whoever is gone is offline in any case."""
    if not member.state.online:
        return "offline"
    if not member.state.tasks:
        return "starting"
    if not any(one.task == task for one in member.state.tasks):
        return "other_task"
    if member.held not in ("", REVOKED):
        return member.held
    if member.held or member.barred or benched:
        return "barred"
    return "unwilling" if member.unwilling else "eligible"


class FleetMeter:
    """Reads `engine` in the coordinator's thread only. At most `max_devices` have `series` of their own."""

    def __init__(
        self, metrics: Metrics, vitals: VitalsMeter, series: DeviceSeries, engine: Engine, max_devices: int
    ) -> None:
        self._metrics = metrics.fleet
        self._traffic = metrics.traffic
        self._vitals = vitals
        self._series = series
        self._engine = engine
        self._max_devices = max_devices
        self._histories: dict[str, History] = {}
        self._open: OpenRound | None = None
        self._shown: tuple[str, ...] = ()
        self._choose_anew = True

    def presence(self, device: str) -> None:
        """A device came or went, or said something else of itself."""
        member = self._engine.fleet.members.get(device)
        if member is None:
            return
        history = self._history(device)
        if history.online and not member.state.online:
            history.disconnects += 1
            self._metrics.disconnects.inc()
        history.online = member.state.online

    def performed(self, effect: Effect, began_at: float) -> None:
        """Takes what is about devices."""
        match effect:
            case Open():
                self._open = self._engine.open
            case Count(what="ignored"):
                self._metrics.ignored.labels(effect.reason).inc(effect.times)
            case Count():
                self._count(effect)
            case Record():
                self._over(effect.record, began_at)

    def look(self, now: float) -> None:
        """The fleet as it stands; costs as much as the fleet has devices."""
        metrics, engine = self._metrics, self._engine
        members, current = engine.fleet.members, engine.open
        standings = Counter(
            standing(member, engine.spec.task, benched=device in engine.fleet.benched)
            for device, member in members.items()
        )
        for state in FLEET_STATES:
            metrics.devices.labels(state).set(standings[state])
        unwilling = engine.fleet.unwilling()
        for condition in CONDITIONS:
            metrics.unwilling.labels(condition).set(unwilling[condition])
        for one in State:
            metrics.participants.labels(one).set(current.round.count(one) if current else 0)
        metrics.wanted.set(engine.wanted())
        self._choose()
        self._series.rows = tuple(self._row(device, now) for device in self._shown)
        self._traffic.device_series.set(len(self._shown))
        self._traffic.without_series.set(len(members) - len(self._shown))

    def _history(self, device: str) -> History:
        return self._histories.setdefault(device, History())

    def _count(self, effect: Count) -> None:
        match effect.what:
            case "declined":
                self._history(effect.device).declines += 1
                self._metrics.declines.labels(effect.reason).inc()
            case "failed":
                self._history(effect.device).failures += 1
                self._metrics.failures.labels(effect.reason).inc()
            case "refused":
                self._history(effect.device).failures += 1
            case "lost":
                self._metrics.lost.inc()
            case "reported":
                self._reported(effect.device, self._history(effect.device))

    def _reported(self, device: str, history: History) -> None:
        current = self._open
        report = current.reports.get(device) if current else None
        if current is None or report is None:
            return
        since = current.round.participants[device].since
        history.round_s = history.slow_s = since[State.REPORTED] - since[State.INVITED]
        history.download_s, history.train_s = report.download_s, report.train_s
        history.user_accuracy_before = report.user_accuracy_before
        history.user_accuracy_after = report.user_accuracy_after

    def _over(self, record: RoundRecord, now: float) -> None:
        """Who stayed away is known only now, and so is who was waited for in vain."""
        if stayed_away := record.failures.get("lost"):
            self._metrics.failures.labels("lost").inc(stayed_away)
        participants = self._open.round.participants if self._open else {}
        for device, participant in participants.items():
            lost = participant.state is State.FAILED and participant.reason == "lost"
            self._history(device).failures += lost
            if lost or participant.state is State.LATE:
                self._history(device).slow_s = now - participant.since[State.INVITED]
        self._open = None
        self._choose_anew = True

    def _choose(self) -> None:
        """All devices, or the slowest, who stay the same to the end of a round: each newcomer is a series for ever."""
        members = self._engine.fleet.members
        # Of devices that had to make way for others nothing is kept either.
        if len(self._histories) > 2 * len(members) + self._max_devices:
            self._histories = {device: one for device, one in self._histories.items() if device in members}
        if len(members) <= self._max_devices:
            self._shown = tuple(sorted(members))
        elif self._choose_anew or len(self._shown) != self._max_devices or not members.keys() >= set(self._shown):
            ranked = sorted(members, key=lambda device: (-self._history(device).slow_s, device))
            self._shown = tuple(sorted(ranked[: self._max_devices]))
            self._choose_anew = False

    def _row(self, device: str, now: float) -> DeviceRow:
        member, history = self._engine.fleet.members[device], self._history(device)
        current = self._engine.open
        participant = current.round.participants.get(device) if current else None
        if participant is not None:
            state: str = participant.state
            reason = participant.reason if participant.state in _TOLD_WHY else ""
        else:
            state = standing(member, self._engine.spec.task, benched=device in self._engine.fleet.benched)
            reason = member.unwilling if state == "unwilling" else ""
        vitals = self._vitals.of(device, now)
        training = participant is not None and participant.state is State.TRAINING
        values = {
            "online": float(member.state.online),
            "progress_ratio": member.progress if training else 0.0,
            "round_seconds": history.round_s,
            "download_seconds": history.download_s,
            "train_seconds": history.train_s,
            "declines": history.declines,
            "failures": history.failures,
            "disconnects": history.disconnects,
            "user_accuracy_before": history.user_accuracy_before,
            "user_accuracy_after": history.user_accuracy_after,
            **values_of(vitals),
        }
        return DeviceRow(device, state, reason, (vitals and vitals.link) or "", values)
