"""The device that a new one replaces in a full fleet: that which has been offline longest among those that never worked.

Without such a device the new one is not admitted.
"""

from __future__ import annotations


class ReplaceableDevices:
    """The offline devices in the order in which they left, and the devices that have worked.

    Example:
        >>> devices = ReplaceableDevices()
        >>> devices.works("a")
        >>> for device in "abc":
        ...     devices.leaves(device)
        >>> devices.longest_offline
        'b'
    """

    def __init__(self) -> None:
        self._worked: set[str] = set()
        self._gone: dict[str, None] = {}

    def works(self, device: str) -> None:
        """Note that a device has worked, so that no new device replaces it."""
        self._worked.add(device)

    def leaves(self, device: str) -> None:
        """Note that a device is offline; its first such presence counts."""
        self._gone.setdefault(device)

    def forget(self, device: str) -> None:
        """Note that a device is online, or no longer in the fleet."""
        self._gone.pop(device, None)

    @property
    def longest_offline(self) -> str | None:
        """The device that a new one replaces; None without one."""
        return next((one for one in self._gone if one not in self._worked), None)
