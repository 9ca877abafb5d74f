"""Which of the messages that come are looked at at all: so many per device, and only the chunks that were asked for.

Decided on topic and size alone, before anything is decoded. A device has two purses. Messages cost one each, and what they
weigh in bytes; both come back with time, and each work request brings more, so that short rounds cost nobody anything.
Chunks of updates are paid from what the coordinator granted: in a round, eight times the largest update that there can be.
Beyond that they come back with time too: who loses its link or its place again and again is slow, and gets there all the same.
Devices that nobody knows share one purse, so that invented names gain nothing; what is remembered here is one entry for
each known device, and what was dropped is counted by reason, and by device where it is known.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Dropped = Literal["over_limit", "not_granted"]

# A device at work tells of its progress five times a second, and once more of each step between.
MESSAGES_PER_S, MESSAGES_AT_ONCE = 20.0, 1200.0
BYTES_PER_S, BYTES_AT_ONCE = 64.0 * 1024, 4.0 * 2**20
# Accept, decline or failed, progress at its ends, offers and presences around one work request.
MESSAGES_PER_REQUEST, BYTES_PER_REQUEST = 32.0, 64.0 * 1024
# An update may be sent this often over in a round: what is sent again after a broken link is a window of it, not the whole.
REPEATS = 8


@dataclass
class TokenBucket:
    """What may be spent now, of a kind that comes back with time (a token bucket); `at` is when that was."""

    left: float
    at: float

    def spend(self, cost: float, now: float, per_s: float, most: float) -> bool:
        """Whether there was enough; if not, nothing is spent."""
        self.fill(now, per_s, most)
        if self.left < cost:
            return False
        self.left -= cost
        return True

    def fill(self, now: float, per_s: float, most: float) -> None:
        """What came back since the last time; a purse that holds more than `most` by favour keeps it."""
        if self.left < most:
            self.left = min(most, self.left + max(0.0, now - self.at) * per_s)
        self.at = max(self.at, now)


class _DeviceBudget:
    def __init__(self, now: float, times: float = 1.0) -> None:
        self.times = times
        self.messages = TokenBucket(MESSAGES_AT_ONCE * times, now)
        self.bytes = TokenBucket(BYTES_AT_ONCE * times, now)
        self.round = ("", 0)
        self.granted_bytes = 0
        self.chunks = TokenBucket(0.0, now)

    def spend(self, size_bytes: int, now: float) -> bool:
        times = self.times
        if not self.messages.spend(1.0, now, MESSAGES_PER_S * times, MESSAGES_AT_ONCE * times):
            return False
        return self.bytes.spend(size_bytes, now, BYTES_PER_S * times, BYTES_AT_ONCE * times)


class RateLimiter:
    """Lets through, or drops and counts. `max_devices` bounds what is remembered, and what strangers may say together."""

    def __init__(self, max_devices: int) -> None:
        # A fleet that a coordinator sees for the first time tells its presence all at once.
        self._strangers = _DeviceBudget(0.0, times=max(1.0, 2.0 * max_devices / MESSAGES_AT_ONCE))
        self._accounts: dict[str, _DeviceBudget] = {}
        self._most = max_devices
        self.dropped: Counter[tuple[str, Dropped]] = Counter()

    def admit(self, kind: str, device: str, size_bytes: int, now: float) -> bool:
        """Whether a message on a topic of `kind` (shared.wire.topics) is to be looked at."""
        account = self._accounts.get(device)
        if kind == "update_chunk":
            granted_bytes = account.granted_bytes if account else 0
            if account and granted_bytes and account.chunks.spend(size_bytes, now, BYTES_PER_S, granted_bytes):
                return True
            return self._drop(device, "not_granted")
        if (account or self._strangers).spend(size_bytes, now):
            return True
        return self._drop(device, "over_limit")

    def know(self, device: str, now: float) -> None:
        """The device is one of the fleet, and has a purse of its own."""
        if device not in self._accounts and len(self._accounts) < self._most:
            self._accounts[device] = _DeviceBudget(now)

    def forget(self, device: str) -> None:
        """It is a stranger again."""
        self._accounts.pop(device, None)

    def asked(self, device: str, run: str, number: int, now: float) -> None:
        """The coordinator asks it for work in a round, and will want to hear of it; what was granted before is void."""
        self.know(device, now)
        account = self._accounts.get(device)
        if account is None:
            return
        account.messages.left = min(account.messages.left + MESSAGES_PER_REQUEST, 2 * MESSAGES_AT_ONCE)
        account.bytes.left = min(account.bytes.left + BYTES_PER_REQUEST, 2 * BYTES_AT_ONCE)
        if account.round != (run, number):
            account.round, account.granted_bytes, account.chunks = (run, number), 0, TokenBucket(0.0, now)

    def granted(self, device: str, largest_bytes: int) -> None:
        """The device may upload an update of at most `largest_bytes`; a grant that is repeated in a round gives nothing new."""
        account = self._accounts.get(device)
        if account is not None and not account.granted_bytes:
            account.granted_bytes = REPEATS * largest_bytes
            account.chunks.left = float(account.granted_bytes)

    def take_dropped(self) -> Counter[tuple[str, Dropped]]:
        """What was dropped since the last call; under no name where the device is not known."""
        dropped, self.dropped = self.dropped, Counter()
        return dropped

    def _drop(self, device: str, reason: Dropped) -> bool:
        self.dropped[device if device in self._accounts else "", reason] += 1
        return False
