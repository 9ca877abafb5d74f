"""The result of a fleet study as plain data for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.shared.config.load import public_values
from fedpatch.simulator.fleet.settings import FleetTerms

if TYPE_CHECKING:
    from fedpatch.simulator.fleet.learning import LearnedRound


@dataclass(frozen=True)
class FleetRound:
    """One round of a simulated fleet.

    All figures but the last three are from the coordinator's record (coordinator.rounds.round_record.RoundRecord), by the
    virtual clock. `failures` counts devices by reason; `lost` counts devices that disconnected and were not back in time,
    `late` those that the round did not wait for. `trainings` began in this round; `used` of them are in the new model.
    `bytes_down` and `bytes_up` are the bytes of chunks between devices and broker since the previous round.
    """

    round: int
    outcome: str
    failure: str
    seconds: float
    phase_seconds: PhaseSeconds
    invited: int
    accepted: int
    declined: Mapping[str, int]
    reported: int
    late: int
    failures: Mapping[str, int]
    refused: Mapping[str, int]
    trainings: int
    bytes_down: int
    bytes_up: int
    carried: int = 0
    learned: LearnedRound | None = None

    @classmethod
    def of(cls, record: RoundRecord, *, trainings: int, bytes_down: int, bytes_up: int) -> FleetRound:
        """Return a round from the coordinator's record and the figures of the simulator."""
        return cls(
            round=record.round,
            outcome=record.outcome,
            failure=record.failure,
            seconds=math.fsum(asdict(record.phase_seconds).values()),
            phase_seconds=record.phase_seconds,
            invited=record.cohort,
            accepted=record.accepted,
            declined=_plain(record.decline_reasons),
            reported=record.reported,
            late=record.late,
            failures=_plain(record.failures),
            refused=_plain(record.refused),
            trainings=trainings,
            bytes_down=bytes_down,
            bytes_up=bytes_up,
            carried=0 if record.buffered is None else record.buffered.carried,
        )

    @property
    def lost(self) -> int:
        """Number of devices that disconnected and were not back in time."""
        return self.failures.get("lost", 0)

    @property
    def used(self) -> int:
        """Number of updates in the new model; 0 if the round failed."""
        return self.reported if self.outcome == "aggregated" else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {**asdict(self), "lost": self.lost, "used": self.used}
        return {name: value for name, value in plain.items() if value is not None}


@dataclass(frozen=True)
class FleetReport:
    """All rounds of one study. `events` were handled in `real_s`, the only figure that differs between equal studies."""

    terms: FleetTerms
    rounds: tuple[FleetRound, ...]
    stopped_because: str
    detail: str
    virtual_s: float
    real_s: float
    events: int

    @property
    def failed(self) -> int:
        """Number of rounds that left the model unchanged."""
        return sum(one.outcome == "failed" for one in self.rounds)

    @property
    def wasted_share(self) -> float | None:
        """Share of the begun trainings that are in no model; None if no training began."""
        trainings = sum(one.trainings for one in self.rounds)
        return None if not trainings else 1.0 - sum(one.used for one in self.rounds) / trainings

    def round_s(self, fraction: float) -> float | None:
        """Return a quantile of the seconds of all rounds, also failed ones: the least that a `fraction` does not exceed."""
        return quantile([one.seconds for one in self.rounds], fraction)

    def totals(self) -> dict[str, Any]:
        """Return totals and medians of the rounds, for JSON and for a comparison."""
        return {
            "rounds": len(self.rounds),
            "failed": self.failed,
            "median_round_s": self.round_s(0.5),
            "p95_round_s": self.round_s(0.95),
            "used": sum(one.used for one in self.rounds),
            "trainings": sum(one.trainings for one in self.rounds),
            "wasted_share": self.wasted_share,
            "bytes_down": sum(one.bytes_down for one in self.rounds),
            "bytes_up": sum(one.bytes_up for one in self.rounds),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "terms": public_values(self.terms),
            "rounds": [one.to_dict() for one in self.rounds],
            "totals": self.totals(),
            "stopped_because": self.stopped_because,
            "detail": self.detail,
            "virtual_s": self.virtual_s,
            "real_s": self.real_s,
            "events": self.events,
        }


def _plain(reasons: Mapping[str, int]) -> dict[str, int]:
    """Count the reasons in the order of the table, not in that of their first use."""
    return {str(reason): count for reason, count in sorted(reasons.items())}


def quantile(values: Sequence[float], fraction: float) -> float | None:
    """Return the least of `values` that a `fraction` of them does not exceed; None if there are no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)] if ordered else None
