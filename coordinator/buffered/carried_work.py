"""Carried work: devices that are still working when their round ends, and updates that wait for a later version.

With `late = "carry"` the end of a round cancels no device that trains or uploads. Its work is carried: the update is accepted
in a later round, and aggregated as the difference from its own base (coordinator.aggregation.rebased_updates). The device does
not notice this: its messages, and the answers, have the epoch and the round of its request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedpatch.shared.wire.messages import MAX_DELTAS

MAX_STALENESS = MAX_DELTAS
"""A device whose model is older than this downloads the whole model anyway."""


@dataclass(frozen=True)
class CarriedWork:
    """The work of a device for a round that is over, or the committed update that results from it.

    Attributes:
        round: Number of the round of its request.
        epoch: The epoch of its request, which answers repeat.
        version: Completed rounds of its base model (ServerState.round).
        base: Digest of its base model.
        encoding: The encoding of its update.
        busy: Whether the device is known to work. A device without this sign may still offer its update.
    """

    round: int
    epoch: int
    version: int
    base: str
    encoding: str
    busy: bool = True


class CarriedDevices:
    """The devices of a run that have carried work and no committed update of it.

    Args:
        known: Work by device at the start of the process.

    Attributes:
        works: The work by device.

    Example:
        >>> carried = CarriedDevices({"pi-1": CarriedWork(3, 1, version=2, base="ab", encoding="fp32")})
        >>> carried.busy
        {'pi-1'}
        >>> sorted(carried.expire(version=8, max_staleness=4))
        ['pi-1']
    """

    def __init__(self, known: Mapping[str, CarriedWork] | None = None) -> None:
        self.works: dict[str, CarriedWork] = dict(known or {})

    @property
    def busy(self) -> set[str]:
        """The devices that are working, as far as is known."""
        return {device for device, work in self.works.items() if work.busy}

    def of(self, device: str, round_number: int) -> CarriedWork | None:
        """Return the work of a device for a round; None if it has none."""
        work = self.works.get(device)
        return work if work is not None and work.round == round_number else None

    def add(self, works: Mapping[str, CarriedWork]) -> None:
        """Add the work of devices at the end of a round."""
        self.works |= works

    def take(self, device: str) -> CarriedWork:
        """Remove and return the work of a device."""
        return self.works.pop(device)

    def drop(self, device: str) -> None:
        """Forget the work of a device, if it has any."""
        self.works.pop(device, None)

    def note(self, device: str, *, busy: bool, epoch: int | None = None) -> None:
        """Note a sign of life of a device with carried work.

        Args:
            epoch: The epoch of its message, if it sent one.
        """
        work = self.works[device]
        self.works[device] = replace(work, busy=busy, epoch=work.epoch if epoch is None else epoch)

    def expire(self, version: int, max_staleness: int) -> dict[str, CarriedWork]:
        """Remove and return the work whose base is too old for the next version.

        Args:
            version: Completed rounds of the present model.
            max_staleness: Greatest number of versions from a base to this model.
        """
        old = {device: work for device, work in self.works.items() if version - work.version > max_staleness}
        for device in old:
            del self.works[device]
        return old
