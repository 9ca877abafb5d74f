"""Speed classes: the fifths of a fleet by training time, and the share of each in the weights of a version."""

from __future__ import annotations

from collections.abc import Mapping

CLASSES = 5
_DIGITS = 4


class SpeedClasses:
    """The last training time of each device that has reported in this process.

    Example:
        >>> speeds = SpeedClasses()
        >>> for device in range(10):
        ...     speeds.note(f"pi-{device}", train_s=float(device))
        >>> speeds.shares({"pi-0": 1.0, "pi-9": 3.0})
        (0.25, 0.0, 0.0, 0.0, 0.75)
    """

    def __init__(self) -> None:
        self._train_s: dict[str, float] = {}

    def note(self, device: str, train_s: float) -> None:
        """Note the training time of a device, in seconds."""
        self._train_s[device] = train_s

    def shares(self, weights: Mapping[str, float]) -> tuple[float, ...]:
        """Return the share of each fifth of the devices in `weights`, the fastest fifth first; empty for fewer than five."""
        ordered = sorted(self._train_s, key=lambda device: (self._train_s[device], device))
        total = sum(weights.values())
        if len(ordered) < CLASSES or not total:
            return ()
        sums = [0.0] * CLASSES
        for at, device in enumerate(ordered):
            sums[at * CLASSES // len(ordered)] += weights.get(device, 0.0)
        return tuple(round(one / total, _DIGITS) for one in sums)
