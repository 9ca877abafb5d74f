"""What a device tells of itself beside its work, so that whoever runs a fleet sees devices that no scrape reaches.

Nothing depends on it: it may be lost, and each one holds all that the one before did. Its owner may switch it off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedpatch.shared.wire.field_types import Count, Fraction, Seconds, Word
from fedpatch.shared.wire.reason_codes import LinkKind

Celsius = Annotated[float, Meta(ge=-273.0, le=1000.0)]
Load = Annotated[float, Meta(ge=0.0, le=1e6)]


@dataclass(frozen=True)
class LastRound:
    """What the last committed round took, by the device's own clock.

    `upload_s` is from the first chunk that it sent until it heard that the update is committed.
    """

    run: Word
    round: Count
    train_s: Seconds
    upload_s: Seconds


@dataclass(frozen=True)
class Vitals:
    """How a device is; None is what nobody there can tell. `load_per_cpu` is the kernel's load of a minute, by CPUs."""

    external_power: bool | None = None
    battery: Fraction | None = None
    under_voltage: bool | None = None
    throttled: bool | None = None
    temperature_c: Celsius | None = None
    link: LinkKind | None = None
    load_per_cpu: Load | None = None
    free_memory_bytes: Count | None = None
    free_disk_bytes: Count | None = None
    last_round: LastRound | None = None
