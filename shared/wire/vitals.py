"""Vitals: the health of a device, published for operators whose Prometheus cannot reach the device.

No other part depends on vitals. A message may be lost, because each one holds all values. The owner can turn them off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from fedpatch.shared.wire.field_types import Count, Fraction, Seconds, Word
from fedpatch.shared.wire.reason_codes import LinkKind

Celsius = Annotated[float, Meta(ge=-273.0, le=1000.0)]
Load = Annotated[float, Meta(ge=0.0, le=1e6)]


@dataclass(frozen=True)
class LastRound:
    """Durations of the last committed round, by the device's own clock, and bytes of models until then.

    `upload_s` is the time from the first chunk sent to the receipt of `Committed`. `mqtt_bytes` and `url_bytes` have arrived
    since the agent's start, by way.
    """

    run: Word
    round: Count
    train_s: Seconds
    upload_s: Seconds
    mqtt_bytes: Count | UnsetType = UNSET
    url_bytes: Count | UnsetType = UNSET


@dataclass(frozen=True)
class Vitals:
    """Health of a device; None: unknown.

    Attributes:
        external_power: Whether external power is connected.
        battery: Charge of the battery, 0 to 1.
        under_voltage: Whether the supply voltage is too low.
        throttled: Whether the processor is throttled.
        temperature_c: Temperature of the processor.
        link: Network interface through which the broker is reached.
        load_per_cpu: The kernel's load average over one minute, divided by the number of CPUs.
        free_memory_bytes: Memory available.
        free_disk_bytes: Free space of the state directory's file system.
        last_round: Durations of the last committed round.
    """

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
