"""Metrics of the devices: the fleet as a whole, and series of single devices.

Series of single devices are bounded in number (coordinator.observability.single_devices). The coordinator's thread
replaces immutable rows; the threads of the endpoint read the newest rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedpatch.coordinator.observability.device_vitals import VitalsMetrics, values_of
from fedpatch.coordinator.observability.metric_definitions import (
    CONDITIONS,
    FLEET_STATES,
    Metrics,
)
from fedpatch.coordinator.observability.single_devices import History, answers_of, worst_in_turn
from fedpatch.coordinator.rounds.active_round import ActiveRound
from fedpatch.coordinator.rounds.held_devices import REVOKED
from fedpatch.coordinator.rounds.known_devices import Member
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect, SaveJournal, SaveRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.shared.wire.features import SUMS_FEATURE
from fedpatch.shared.wire.messages import DeviceState

_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)


@dataclass(frozen=True)
class DeviceRow:
    """The series of one device. `values` maps metric names without prefix; None, or an empty `link`, has no series."""

    device: str
    state: str
    reason: str
    link: str
    values: Mapping[str, float | None]


GAUGES = {
    "online": "1 while it is online",
    "site_devices": "Of a relay: the devices of its site that can take part",
    "progress_ratio": "Completed share of its training in the open round",
    "round_seconds": "Time from invitation to committed update in the last round",
    "download_seconds": "Download time in that round, by the device's clock",
    "train_seconds": "Training time in that round, by the device's clock",
    "upload_seconds": "Upload time in the last reported round, by the device's clock",
    "temperature_celsius": "Temperature of the hottest part of the processor",
    "external_power": "1 on external power",
    "battery_ratio": "Charge of its battery",
    "under_voltage": "1 while its supply is too weak",
    "throttled": "1 while its processor is slowed down",
    "load_per_cpu": "Load of a minute per CPU",
    "free_memory_bytes": "Available memory",
    "free_disk_bytes": "Free space on the disk of its state directory",
}
COUNTERS = {
    "declines": "Declined invitations",
    "failures": "Failures, rejected updates and absences",
    "disconnects": "Disconnections",
}
ACCURACIES = {"before": "user_accuracy_before", "after": "user_accuracy_after"}


class DeviceSeries(Collector):
    """Exports `rows`, a tuple that is replaced as a whole."""

    def __init__(self) -> None:
        self.rows: tuple[DeviceRow, ...] = ()

    def collect(self) -> Iterable[Metric]:
        """Yield one metric family after the other, each with all devices that have a value."""
        rows = self.rows
        state = GaugeMetricFamily(
            "fedpatch_device_state",
            "Always 1; state in the open round, else or if held and away in the fleet, with the reason of a decline or failure",
            labels=("device", "state", "reason"),
        )
        for row in rows:
            state.add_metric((row.device, row.state, row.reason), 1)
        yield state
        link = GaugeMetricFamily(
            "fedpatch_device_link",
            "Always 1; link to the broker: loopback, ethernet, wifi, cellular, other",
            labels=("device", "kind"),
        )
        for row in rows:
            if row.link:
                link.add_metric((row.device, row.link), 1)
        yield link
        for name, text in GAUGES.items():
            yield _fill(GaugeMetricFamily(f"fedpatch_device_{name}", text, labels=("device",)), name, rows)
        for name, text in COUNTERS.items():
            yield _fill(CounterMetricFamily(f"fedpatch_device_{name}", text, labels=("device",)), name, rows)
        accuracy = GaugeMetricFamily(
            "fedpatch_device_user_accuracy",
            "User accuracy on its test data, before and after training in that round",
            labels=("device", "moment"),
        )
        for moment, name in ACCURACIES.items():
            _fill(accuracy, name, rows, moment)
        yield accuracy


def _fill(family: _Family, name: str, rows: Iterable[DeviceRow], *more: str) -> _Family:
    for row in rows:
        value = row.values[name]
        if value is not None:
            family.add_metric((row.device, *more), value)
    return family


def _site_devices(state: DeviceState, task: str) -> float | None:
    """Return the devices that a relay speaks for; None for a device that is no relay, or is offline."""
    if SUMS_FEATURE not in state.features or not state.online:
        return None
    # A site without a device that can take part has no examples.
    return float(sum(one.num_members for one in state.tasks if one.task == task and one.num_examples))


_TOLD_WHY = (State.DECLINED, State.FAILED, State.LATE, State.LOST)


def standing(member: Member, task: str, *, offender: bool = False) -> str:
    """Return the state of a device, one of FLEET_STATES; `offender` marks an offender.

    A device that is held or revoked is that, online or not: an operator took it out, so nobody looks for it. Otherwise offline
    has precedence.
    """
    if member.held:
        return "barred" if member.held == REVOKED else member.held
    if not member.state.online:
        return "offline"
    if not member.state.tasks:
        return "starting"
    if not any(one.task == task for one in member.state.tasks):
        return "other_task"
    if member.barred or offender:
        return "barred"
    return "unwilling" if member.unwilling else "eligible"


class FleetMetrics:
    """Updates the metrics of the fleet in the coordinator's thread. At most `max_devices` devices have series of their own."""

    def __init__(
        self, metrics: Metrics, vitals: VitalsMetrics, series: DeviceSeries, engine: Engine, max_devices: int
    ) -> None:
        self._metrics = metrics.fleet
        self._traffic = metrics.traffic
        self._vitals = vitals
        self._series = series
        self._engine = engine
        self._max_devices = max_devices
        self._histories: dict[str, History] = {}
        self._open: ActiveRound | None = None
        self._shown: tuple[str, ...] = ()
        self._choose_anew = True

    def presence(self, device: str) -> None:
        """Handle a change of presence."""
        member = self._engine.fleet.members.get(device)
        if member is None:
            return
        history = self._history(device)
        if history.online and not member.state.online:
            history.disconnects += 1
            self._metrics.disconnects.inc()
        history.online = member.state.online

    def performed(self, effect: Effect, began_at: float) -> None:
        """Handle an effect that concerns devices."""
        match effect:
            case SaveJournal():
                self._open = self._engine.open
            case CountEvent(what="ignored"):
                self._metrics.ignored.labels(effect.reason).inc(effect.times)
            case CountEvent():
                self._count(effect)
            case SaveRecord():
                self._over(effect.record, began_at)

    def look(self, now: float) -> None:
        """Update the metrics; the cost is linear in the size of the fleet."""
        metrics, engine = self._metrics, self._engine
        members, current = engine.fleet.members, engine.open
        standings = Counter(
            standing(member, engine.spec.task, offender=device in engine.fleet.offenders)
            for device, member in members.items()
        )
        for state in FLEET_STATES:
            metrics.devices.labels(state).set(standings[state])
        unwilling = engine.fleet.unwilling()
        for condition in CONDITIONS:
            metrics.unwilling.labels(condition).set(unwilling[condition])
        for one in State:
            metrics.participants.labels(one).set(current.round.count(one) if current else 0)
        metrics.wanted.set(engine.required_devices())
        self._choose()
        self._series.rows = tuple(self._row(device, now) for device in self._shown)
        self._traffic.device_series.set(len(self._shown))
        self._traffic.without_series.set(len(members) - len(self._shown))

    def _history(self, device: str) -> History:
        return self._histories.setdefault(device, History())

    def _count(self, effect: CountEvent) -> None:
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
        if current is None or report is None or self._engine.spec.privacy is not None:
            return
        since = current.round.participants[device].since
        history.round_s = history.slow_s = since[State.REPORTED] - since[State.INVITED]
        history.download_s, history.train_s = report.download_s, report.train_s
        history.user_accuracy_before = report.user_accuracy_before
        history.user_accuracy_after = report.user_accuracy_after

    def _over(self, record: RoundRecord, now: float) -> None:
        """Count the devices that were lost or late: this is known only at the end of the round."""
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
        """Choose at most `max_devices` devices to export, once per round: Prometheus keeps every series it has ever seen."""
        members = self._engine.fleet.members
        # Histories of devices that were evicted from the fleet are deleted too.
        if len(self._histories) > 2 * len(members) + self._max_devices:
            self._histories = {device: one for device, one in self._histories.items() if device in members}
        if len(members) <= self._max_devices:
            self._shown = tuple(sorted(members))
        elif self._choose_anew or len(self._shown) != self._max_devices or not members.keys() >= set(self._shown):
            self._shown = tuple(sorted(worst_in_turn({one: self._answers(one) for one in members}, self._max_devices)))
            self._choose_anew = False

    def _answers(self, device: str) -> Sequence[float]:
        member = self._engine.fleet.members[device]
        away = not member.state.online and not member.held
        return answers_of(self._history(device), away=away, in_trouble=self._vitals.in_trouble(device))

    def _row(self, device: str, now: float) -> DeviceRow:
        member, history = self._engine.fleet.members[device], self._history(device)
        current = self._engine.open
        participant = current.round.participants.get(device) if current else None
        # An operator who takes out an absent device need not wait for the end of the round: FedpatchDeviceOffline reads this.
        if participant is not None and (member.state.online or not member.held):
            state: str = participant.state
            reason = participant.reason if participant.state in _TOLD_WHY else ""
        else:
            state = standing(member, self._engine.spec.task, offender=device in self._engine.fleet.offenders)
            reason = member.unwilling if state == "unwilling" else ""
        vitals = self._vitals.of(device, now)
        training = participant is not None and participant.state is State.TRAINING
        values = {
            "online": float(member.state.online),
            "site_devices": _site_devices(member.state, self._engine.spec.task),
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
