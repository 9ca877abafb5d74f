"""Held devices: those that the operator has quarantined or drained, and those with a revoked certificate."""

from __future__ import annotations

from collections.abc import Collection, Mapping

QUARANTINED, DRAINED, REVOKED = "quarantined", "drained", "revoked"


class HeldDevices:
    """The holds of a fleet, also on devices that were never seen.

    Example:
        >>> held = HeldDevices()
        >>> held.put({"pi-1": DRAINED}), held.revoke({"pi-2"})
        ({'pi-1'}, {'pi-2'})
        >>> held.reason("pi-2")
        'revoked'
    """

    def __init__(self) -> None:
        self.by_device: dict[str, str] = {}
        self._put: Mapping[str, str] = {}
        self._revoked: frozenset[str] = frozenset()

    @property
    def revoked(self) -> frozenset[str]:
        """The devices with a revoked certificate."""
        return self._revoked

    def reason(self, device: str) -> str:
        """Return the kind of the hold on a device; "" for none."""
        return self.by_device.get(device, "")

    def put(self, holds: Mapping[str, str]) -> set[str]:
        """Replace the quarantined and drained devices; return the devices whose hold has changed. Revoked devices stay so."""
        self._put = dict(holds)
        return self._change()

    def revoke(self, devices: Collection[str]) -> set[str]:
        """Replace the revoked devices; return the devices whose hold has changed."""
        if self._revoked == devices:
            return set()
        self._revoked = frozenset(devices)
        return self._change()

    def _change(self) -> set[str]:
        before, self.by_device = self.by_device, {**dict.fromkeys(self._revoked, REVOKED), **self._put}
        return {device for device in {*before, *self.by_device} if before.get(device) != self.by_device.get(device)}
