"""Data of a report's charts and tables, from the records of a run: curves, sums, at most as many points as can be seen."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import accumulate

from fedpatch.coordinator.report.incidents import Incident
from fedpatch.coordinator.rounds.learning_alone import last_comparison
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord, last_user_accuracy
from fedpatch.coordinator.rounds.run_summary import RunInfo, status_words
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.field_types import MAX_MEASURE

Point = tuple[float, float]
PHASES = tuple(one.name for one in fields(PhaseSeconds))
MAX_SECONDS, MAX_BYTES, MAX_ROUND = 1e9, 1e18, 1e9
TIME_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
BYTE_UNITS = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))

# Characters that XML cannot hold: control characters, halves of surrogate pairs, and two more.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

MISSING_KINDS = ("declined", "failed", "refused")
"""Results of devices for which a record has reasons; a late device has no reason."""


@dataclass(frozen=True)
class Run:
    """A run in a report: its row in the registry, its completed rounds, and incidents beside them."""

    info: RunInfo
    records: tuple[RoundRecord, ...]
    incidents: tuple[Incident, ...] = ()

    @property
    def metric(self) -> MetricTerms:
        """The run's metric."""
        last = self.records[-1] if self.records else None
        return MetricTerms(last.metric, last.metric_goal) if last else MetricTerms()

    @property
    def tenth_words(self) -> str:
        """Name of the worst tenth."""
        return "10th percentile" if self.metric.goal == "max" else "90th percentile"

    @property
    def worst_words(self) -> str:
        """Name of the worst device."""
        return "lowest" if self.metric.goal == "max" else "highest"

    @property
    def status(self) -> str:
        """Outcome of the run, or `running`."""
        return status_words(self.info)

    @property
    def aggregated(self) -> tuple[RoundRecord, ...]:
        """The rounds whose user accuracies count: a failed round measured only a part of its devices."""
        return tuple(record for record in self.records if record.outcome == "aggregated")

    @property
    def last(self) -> float | None:
        """User accuracy of the last round that counts."""
        return last_user_accuracy(self.records)

    @property
    def comparison(self) -> RoundRecord | None:
        """The last round that measured learning alone."""
        return last_comparison(self.records)

    @property
    def evaluation(self) -> RoundRecord | None:
        """The last evaluate round with an answer."""
        return next((one for one in reversed(self.records) if one.outcome == "evaluated"), None)

    @property
    def best(self) -> float | None:
        """The best mean of any round that counts."""
        known = [one.user_accuracy for one in self.aggregated if one.user_accuracy is not None]
        return (max if self.metric.goal == "max" else min)(known, default=None)

    @property
    def seconds(self) -> float:
        """Seconds spent in rounds, without the pauses between them."""
        return within(sum(map(round_seconds, self.records)), MAX_SECONDS)

    @property
    def target(self) -> float | None:
        """The user accuracy at which the run was to end."""
        value = self.info.settings.get("target_ua")
        return measure(float(value)) if isinstance(value, int | float) else None


def plain_text(text: str) -> str:
    """`text` with the replacement character for each character that no page can hold."""
    return _ILLEGAL.sub("\ufffd", text)


def unit_for(most: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The first unit (a name, its size; the greatest first) of which `most` is at least two, or else the last."""
    return next((unit for unit in units if most >= 2 * unit[1]), units[-1])


def within(value: float | None, most: float) -> float:
    """A number that can be drawn: from 0 to `most`; 0 for None and for a value that is not finite."""
    return min(max(float(value), 0.0), most) if value is not None and math.isfinite(value) else 0.0


def measure(value: float | None) -> float | None:
    """A user accuracy that can be drawn; None if it is not a finite number."""
    return min(max(value, -MAX_MEASURE), MAX_MEASURE) if value is not None and math.isfinite(value) else None


def phase_seconds(record: RoundRecord) -> list[float]:
    """Seconds in each of PHASES."""
    return [within(seconds, MAX_SECONDS) for seconds in astuple(record.phase_seconds)]


def round_seconds(record: RoundRecord) -> float:
    """Return the seconds of the round, the sum of its phases."""
    return sum(phase_seconds(record))


def missing(record: RoundRecord, kind: str) -> dict[str, int]:
    """Devices that were asked and gave no update, by reason; `kind` is one of MISSING_KINDS."""
    maps = dict(zip(MISSING_KINDS, (record.decline_reasons, record.failures, record.refused), strict=True))
    return {reason: max(0, count) for reason, count in maps[kind].items()}


def reasons(records: Iterable[RoundRecord]) -> Counter[tuple[str, str]]:
    """Return how often each (kind, reason) kept a device out of a round, or a round from being aggregated."""
    found: Counter[tuple[str, str]] = Counter()
    for record in records:
        for kind in MISSING_KINDS:
            found.update({(kind, reason): count for reason, count in missing(record, kind).items()})
        found[("late", "")] += max(0, record.late)
        if record.failure:
            found[("round failed", record.failure)] += 1
    return +found


def by_round(records: Sequence[RoundRecord]) -> list[float]:
    """Return the place of each record on an axis of rounds."""
    return [within(record.round, MAX_ROUND) for record in records]


def by_time(records: Sequence[RoundRecord], unit_s: float = 1.0) -> list[float]:
    """Return the place of each record on an axis of time spent in rounds, in units of `unit_s`: the end of its round."""
    return [min(seconds, MAX_SECONDS) / unit_s for seconds in accumulate(map(round_seconds, records))]


def curve(
    places: Sequence[float], records: Sequence[RoundRecord], field: str, outcome: str = "aggregated"
) -> list[Point]:
    """Return the points of a field of the rounds with an outcome that have it.

    Args:
        places: The x value of each record.
        records: Rounds, in order.
        field: Name of a field of RoundRecord.
        outcome: Outcome of the rounds.
    """
    pairs = ((x, record) for x, record in zip(places, records, strict=True) if record.outcome == outcome)
    return [(x, y) for x, record in pairs if (y := measure(getattr(record, field))) is not None]


def device_curves(records: Sequence[RoundRecord], limit: int) -> dict[str, list[Point]]:
    """The user accuracy of each device by round, of the `limit` devices that were measured most often; by name."""
    found: dict[str, list[Point]] = {}
    for x, record in zip(by_round(records), records, strict=True):
        for device, value in record.user_accuracies.items() if record.outcome == "aggregated" else ():
            if (y := measure(value)) is not None:
                found.setdefault(device, []).append((x, y))
    chosen = sorted(found, key=lambda device: (-len(found[device]), device))[:limit]
    return {device: found[device] for device in sorted(chosen)}


def thinned(points: Sequence[Point], limit: int) -> list[Point]:
    """At most `limit` (4 or more) of the points, with first and last, and the least and greatest of each stretch."""
    if len(points) <= limit:
        return list(points)
    size = -(-len(points) // (limit // 2 - 1))
    kept = {0, len(points) - 1}
    for begin in range(0, len(points), size):
        stretch = range(begin, min(begin + size, len(points)))
        kept.add(min(stretch, key=lambda index: points[index][1]))
        kept.add(max(stretch, key=lambda index: points[index][1]))
    return [points[index] for index in sorted(kept)]


def stretches(records: Sequence[RoundRecord], limit: int) -> list[Sequence[RoundRecord]]:
    """The rounds in order, in at most `limit` stretches of equal length."""
    size = max(1, -(-len(records) // limit))
    return [records[begin : begin + size] for begin in range(0, len(records), size)]
