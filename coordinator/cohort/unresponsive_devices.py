"""Which devices of an open round have fallen silent. Every message, chunk and presence of a device is a sign of life.

A device at work from which nothing came for PROBE_S is sent its work request again, which it answers at once: a device that
trains for an hour is not silent, one that does not answer is. A round waits for silent devices as long as it waits for others
anyway. If only silent devices are left, they are given up after

| state | silence |
|---|---|
| accepted | SILENT_S, and the time that its download takes at SLOW_BYTES_S: the request may wait behind the model's chunks |
| training | SILENT_S |
| uploading | STALL_S without a new chunk, whatever it says; the time that it waits for a place does not count |
| asked again after a restart | SILENT_S, or STARTING_S while it says that it is starting |
"""

from __future__ import annotations

import math
from collections.abc import Iterable

PROBE_S = 15.0
# As long as an agent may pause before it connects again, and longer than a broker needs to notice a broken connection.
SILENT_S = 60.0
SLOW_BYTES_S = 16_000.0
# A device that starts loads torch, its task and its data: a minute on a Raspberry Pi, more on a busy machine.
STARTING_S = 300.0
# After the quorum there is no time to wait longer for an answer.
ANSWER_S = 5.0
UPLOAD_ANSWER_S = 10.0


class UnresponsiveDevices:
    """When each device of a round was last heard, and asked to answer. `began_at` is since when devices can be heard."""

    def __init__(self, now: float) -> None:
        self.began_at = now
        self._heard_at: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._deaf = False

    def note_message(self, device: str, now: float) -> None:
        """A sign of life."""
        self._heard_at[device] = now

    def asked(self, devices: Iterable[str], now: float) -> None:
        """They were sent something that they answer at once."""
        self._asked_at.update(dict.fromkeys(devices, now))

    def listen(self, now: float, *, connected: bool) -> None:
        """Takes note of the link to the broker: without it nothing can be heard, and devices need time to come back, too."""
        if not connected:
            self._deaf = True
        elif self._deaf:
            self._deaf = False
            self.began_at = now + SILENT_S / 2
            self._asked_at.clear()

    def since(self, device: str) -> float:
        """The moment of its last sign of life, or that since which signs could be heard."""
        return max(self._heard_at.get(device, -math.inf), self.began_at)

    def to_probe(self, devices: Iterable[str], now: float) -> list[str]:
        """Those of `devices` that are to be asked (again) whether they are there."""
        last = (self._heard_at, self._asked_at)
        return [one for one in devices if now - max(times.get(one, -math.inf) for times in last) >= PROBE_S]

    def is_mute(self, device: str, now: float, *, uploads: bool = False) -> bool:
        """Whether it has not answered what it was asked last, though it had ANSWER_S to do so.

        A device that uploads is not asked: it speaks by itself, every few seconds while it has its place.
        """
        if self._deaf:
            return False
        if uploads:
            return now - self.since(device) >= UPLOAD_ANSWER_S
        asked_at = self._asked_at.get(device)
        return asked_at is not None and self.since(device) < asked_at <= now - ANSWER_S
