"""A device in the registry, and the hold of an operator on a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """The reason for a hold on a device, and its beginning in Unix seconds."""

    reason: str
    since: float


@dataclass(frozen=True)
class DeviceInfo:
    """A device in the registry. Times are Unix seconds; counters are over all runs.

    Attributes:
        last_reason: Reason of its last decline, failure or refusal.
        offences: Offences since its last release (coordinator.cohort.offences).
        quarantined: The hold if it is in quarantine.
        drained: The hold if the operator has drained it.
        revoked: Whether the CA has revoked it.
        relay: Whether it is the relay of a site.
    """

    id: str
    fleet: str
    first_seen: float
    last_seen: float
    online: bool
    version: str
    tasks: tuple[str, ...]
    invited: int
    accepted: int
    declined: int
    reported: int
    lost: int
    failed: int
    refused: int
    late: int
    ignored: int
    last_reason: str
    offences: int = 0
    quarantined: Hold | None = None
    drained: Hold | None = None
    revoked: bool = False
    relay: bool = False
