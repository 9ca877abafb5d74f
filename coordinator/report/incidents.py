"""Incidents of a run beside the results of its rounds: restarts, held, revoked and absent devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedpatch.coordinator.pki.issued_certificates import DEVICE, Index
from fedpatch.coordinator.rounds.device_record import Hold
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo


@dataclass(frozen=True)
class Incident:
    """An incident.

    Attributes:
        what: "coordinator restarted", "drained", "quarantined", "revoked" or "absent".
        device: The device; "" for the coordinator.
        at: Unix time of its beginning, in seconds; None if it is not known.
        detail: The reason, or another short text.
    """

    what: str
    device: str = ""
    at: float | None = None
    detail: str = ""


def recorded_incidents(
    info: RunInfo, holds: Mapping[tuple[str, str], Mapping[str, Hold]], index: Index | None
) -> tuple[Incident, ...]:
    """Return the incidents of a run that the registry and the CA know.

    A hold or a revocation counts if it began after the run and is still in force; a lifted hold leaves no trace.

    Args:
        holds: All holds by (fleet, device) and kind.
        index: The record of the CA; None if there is none.
    """
    found = []
    # With standbys the number is the leader's, which also grows between runs.
    if info.epoch > 1 and not info.settings.get("standby"):
        found.append(Incident("coordinator restarted", detail=f"its last process is number {info.epoch} of the run"))
    for (fleet, device), kinds in sorted(holds.items()):
        if fleet == info.settings.get("fleet"):
            found += [
                Incident(kind, device, hold.since, hold.reason)
                for kind, hold in sorted(kinds.items())
                if hold.since >= info.created_at
            ]
    revoked = index.revoked_devices() if index else frozenset()
    for entry in index.entries if index else ():
        if entry.part == DEVICE and entry.name in revoked and entry.revoked_at >= int(info.created_at):
            found.append(Incident("revoked", entry.name, entry.revoked_at, entry.reason))
    return tuple(found)


def absences(records: Iterable[RoundRecord]) -> tuple[Incident, ...]:
    """Return the devices that missed rounds, those with most missed rounds in a row first."""
    most: dict[str, int] = {}
    for record in records:
        for device, missed in record.absent.items():
            most[device] = max(missed, most.get(device, 0))
    ordered = sorted(most.items(), key=lambda one: (-one[1], one[0]))
    return tuple(Incident("absent", device, detail=f"missed rounds in a row: {missed:,}") for device, missed in ordered)
