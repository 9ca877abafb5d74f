"""Token bucket: a rate with a limited burst."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A wait below the resolution of the clock would never end.
_LEAST_WAIT_S = 1e-9


@dataclass
class TokenBucket:
    """A bucket that gains tokens with time. A level above `most` is kept until it is spent.

    Attributes:
        per_s: Tokens gained per second.
        most: Tokens at which the bucket gains no more.
        level: Tokens in the bucket.
        at: Time of `level`, in seconds.

    Example:
        >>> bucket = TokenBucket(90.0, most=10.0, level=10.0)
        >>> bucket.spend(10.0, now=0.0), bucket.spend(1.0, now=0.0)
        (True, False)
        >>> round(bucket.wait_s(1.0, now=0.0), 3)
        0.011
    """

    per_s: float
    most: float
    level: float
    at: float = -math.inf

    def wait_s(self, tokens: float, now: float) -> float:
        """Return the seconds until `tokens` are there; more than `most` count as `most`."""
        self._fill(now)
        wait_s = (min(tokens, self.most) - self.level) / self.per_s
        return wait_s if wait_s > _LEAST_WAIT_S else 0.0

    def spend(self, tokens: float, now: float) -> bool:
        """Take `tokens` if they are there, and return whether they were."""
        self._fill(now)
        if self.level < tokens:
            return False
        self.level -= tokens
        return True

    def owe(self, tokens: float, now: float) -> None:
        """Take `tokens`, also if they are not there; later gains pay for them."""
        self._fill(now)
        self.level -= tokens

    def _fill(self, now: float) -> None:
        if self.level < self.most:
            self.level = min(self.most, self.level + max(0.0, now - self.at) * self.per_s)
        self.at = max(self.at, now)
