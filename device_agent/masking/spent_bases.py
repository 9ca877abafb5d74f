"""Whether a base is spent: this device has offered a masked update from its values, in any run, round or group.

Two sums from one base, of groups that differ by a device, would show the update of that device.
"""

from __future__ import annotations

from collections.abc import Collection


class SpentBases:
    """The spent bases of one device; state.offered_bases keeps them on disk.

    Args:
        offered: Digests of the bases; None: the record of them is damaged, so every base counts as spent.

    Attributes:
        offered: As given, with the bases of later offers.

    Example:
        >>> bases = SpentBases(["ab"])
        >>> bases.is_spent("ab"), bases.is_spent("cd"), SpentBases(None).is_spent("cd")
        (True, False, True)
    """

    def __init__(self, offered: Collection[str] | None) -> None:
        self.offered = None if offered is None else set(offered)

    @property
    def is_damaged(self) -> bool:
        """True if the record is damaged, so that nothing may be offered, nor repeated."""
        return self.offered is None

    def is_spent(self, base: str) -> bool:
        """Return whether no further update from a base may be offered."""
        return self.offered is None or base in self.offered

    def add(self, base: str) -> None:
        """Note the base of an offered update."""
        if self.offered is not None:
            self.offered.add(base)
