"""Devices that do not answer: when a device is asked for a sign of life, and when it counts as mute."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_phases import STARTING_S
from fedpatch.coordinator.rounds.upload_scheduler import STALL_S, UploadScheduler

PROBE_S = 15.0
# The longest pause of an agent before it connects again. A broker needs less time to notice a broken connection.
SILENT_S = 60.0
SLOW_BYTES_S = 16_000.0
# After the quorum there is no time to wait longer for an answer.
ANSWER_S = 5.0
UPLOAD_ANSWER_S = 10.0
SILENT = "silent"
"""The reason of a participant that fell silent."""


class UnresponsiveDevices:
    """The last sign of life of each device of a round, and the last message that it must answer.

    Every message, chunk and presence of a device is a sign of life. The round sends the work request again to a working device
    that has sent nothing for PROBE_S. The device answers at once, even during an hour of training; a device that does not
    answer is silent. A round waits for silent devices as long as it waits for other devices. Once only silent devices are left,
    each of them fails after

    | state | silence |
    |---|---|
    | accepted | SILENT_S, and the time of its download at SLOW_BYTES_S: the request may wait behind the model's chunks |
    | training | SILENT_S |
    | uploading | STALL_S without a new chunk, even if it sends messages; the wait for an upload slot does not count |
    | asked again after a restart | SILENT_S, or STARTING_S while its presence is *starting* |

    Times are those of the run's clock, in seconds. `began_at` is the time since which messages can arrive.
    """

    def __init__(self, now: float) -> None:
        self.began_at = now
        self._received_at: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._disconnected = False

    def note_message(self, device: str, now: float) -> None:
        """Note a sign of life."""
        self._received_at[device] = now

    def note_request(self, devices: Iterable[str], now: float) -> None:
        """Note that the devices were sent a message that they answer at once."""
        self._asked_at.update(dict.fromkeys(devices, now))

    def note_link(self, now: float, *, connected: bool) -> None:
        """Note the state of the link to the broker.

        Without the link no message arrives. When it is back, devices also need time to connect again.
        """
        if not connected:
            self._disconnected = True
        elif self._disconnected:
            self._disconnected = False
            self.began_at = now + SILENT_S / 2
            self._asked_at.clear()

    def since(self, device: str) -> float:
        """Return the time of the last sign of life, or `began_at` if that is later."""
        return max(self._received_at.get(device, -math.inf), self.began_at)

    def to_probe(self, devices: Iterable[str], now: float) -> list[str]:
        """Return those of `devices` whose last sign of life and last request are at least PROBE_S ago."""
        last = (self._received_at, self._asked_at)
        return [device for device in devices if now - max(times.get(device, -math.inf) for times in last) >= PROBE_S]

    def is_mute(self, device: str, now: float, *, uploads: bool = False) -> bool:
        """Return whether the device has not answered its last request, and had ANSWER_S to do so.

        Args:
            now: The run's time, in seconds.
            uploads: Whether the device has an upload slot. Such a device gets no request, since it sends a message every few
                seconds; it is mute after UPLOAD_ANSWER_S without a message.
        """
        if self._disconnected:
            return False
        if uploads:
            return now - self.since(device) >= UPLOAD_ANSWER_S
        asked_at = self._asked_at.get(device)
        return asked_at is not None and self.since(device) < asked_at <= now - ANSWER_S

    def is_silent(
        self,
        device: str,
        state: State,
        now: float,
        uploads: UploadScheduler,
        *,
        starts: bool,
        download_bytes: int,
    ) -> bool:
        """Return whether a device is silent by the table of this class.

        Args:
            state: Its state in the round.
            now: The run's time, in seconds.
            starts: Whether its presence is *starting*.
        """
        since, limit_s = self.since(device), SILENT_S
        match state:
            case State.LOST:
                return False
            case State.INVITED if starts:
                limit_s = STARTING_S
            case State.ACCEPTED:
                limit_s += download_bytes / SLOW_BYTES_S
            case State.UPLOADING:
                since, limit_s = max(uploads.still_since(device, since, now), self.began_at), STALL_S
        return now - since >= limit_s
