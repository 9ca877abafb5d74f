"""Rate limits: how many messages and bytes of each device are taken.

The limiter decides by topic and size alone, before a message is decoded. A device has token buckets:

- A message takes one token from the bucket of messages, and its size from the bucket of bytes. Both fill with time. Each work
  request adds tokens, so that a fleet with short rounds is not limited.
- A chunk takes its size from a bucket that a grant fills: in a round, eight times the largest possible update. The bucket also
  fills slowly with time, so that a device that often loses its link or its upload slot still completes its upload.

Unknown devices share one set of buckets, so that invented names gain nothing. The limiter keeps one entry for each known
device. It counts dropped messages by reason, and by device if that is known.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from fedpatch.shared.token_bucket import TokenBucket

Dropped = Literal["over_limit", "not_granted"]
# A working device sends its progress five times a second, and one more message for each phase.
MESSAGES_PER_S, MESSAGES_AT_ONCE = 20.0, 1200.0
BYTES_PER_S, BYTES_AT_ONCE = 64.0 * 1024, 4.0 * 2**20
# Accept, decline or failed, progress at its ends, offers and presences around one work request.
MESSAGES_PER_REQUEST, BYTES_PER_REQUEST = 32.0, 64.0 * 1024
# The chunks of an update may be sent this often in a round: after a broken link a device repeats a window of them, not all.
REPEATS = 8


class _DeviceBudget:
    def __init__(self, now: float, times: float = 1.0) -> None:
        messages, size_bytes = MESSAGES_AT_ONCE * times, BYTES_AT_ONCE * times
        self.messages = TokenBucket(MESSAGES_PER_S * times, messages, messages, now)
        self.bytes = TokenBucket(BYTES_PER_S * times, size_bytes, size_bytes, now)
        self.round = ("", 0)
        self.chunks = _ungranted(now)

    def spend(self, size_bytes: int, now: float) -> bool:
        return self.messages.spend(1.0, now) and self.bytes.spend(size_bytes, now)


def _ungranted(now: float) -> TokenBucket:
    return TokenBucket(BYTES_PER_S, 0.0, 0.0, now)


class RateLimiter:
    """Admits messages, or drops and counts them.

    Args:
        max_devices: Greatest number of devices with their own buckets. The buckets of unknown devices grow with this number.
    """

    def __init__(self, max_devices: int) -> None:
        # A starting coordinator receives the presence of a whole unknown fleet at once.
        self._unknown = _DeviceBudget(0.0, times=max(1.0, 2.0 * max_devices / MESSAGES_AT_ONCE))
        self._accounts: dict[str, _DeviceBudget] = {}
        self._most = max_devices
        self.dropped: Counter[tuple[str, Dropped]] = Counter()

    def admit(self, kind: str, device: str, size_bytes: int, now: float) -> bool:
        """Decide on a received message.

        Args:
            kind: The kind of its topic (shared.wire.topics).
            device: The device in the topic.
            now: The time, in seconds.

        Returns:
            Whether the message is admitted. If not, it is counted in `dropped`.
        """
        account = self._accounts.get(device)
        if kind == "update_chunk":
            if account and account.chunks.most and account.chunks.spend(size_bytes, now):
                return True
            return self._drop(device, "not_granted")
        if (account or self._unknown).spend(size_bytes, now):
            return True
        return self._drop(device, "over_limit")

    def know(self, device: str, now: float) -> None:
        """Give the device its own buckets."""
        if device not in self._accounts and len(self._accounts) < self._most:
            self._accounts[device] = _DeviceBudget(now)

    def forget(self, device: str) -> None:
        """Treat the device as unknown again."""
        self._accounts.pop(device, None)

    def asked(self, device: str, run: str, number: int, now: float) -> None:
        """Add tokens for the answers to a work request; a grant of an earlier round ends.

        Args:
            now: The time, in seconds.
        """
        self.know(device, now)
        account = self._accounts.get(device)
        if account is None:
            return
        account.messages.level = min(account.messages.level + MESSAGES_PER_REQUEST, 2 * MESSAGES_AT_ONCE)
        account.bytes.level = min(account.bytes.level + BYTES_PER_REQUEST, 2 * BYTES_AT_ONCE)
        if account.round != (run, number):
            account.round, account.chunks = (run, number), _ungranted(now)

    def granted(self, device: str, largest_bytes: int) -> None:
        """Add tokens for the chunks of an update of at most `largest_bytes`; a repeated grant of a round adds none."""
        account = self._accounts.get(device)
        if account is not None and not account.chunks.most:
            account.chunks.most = account.chunks.level = float(REPEATS * largest_bytes)

    def take_dropped(self) -> Counter[tuple[str, Dropped]]:
        """Return and reset the number of dropped messages, by device ("" for unknown ones) and reason."""
        dropped, self.dropped = self.dropped, Counter()
        return dropped

    def _drop(self, device: str, reason: Dropped) -> bool:
        self.dropped[device if device in self._accounts else "", reason] += 1
        return False
