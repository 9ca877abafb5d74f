"""The threshold of a group: the number of members that must reveal, and of colluders that it withstands."""

from __future__ import annotations

from fedpatch.shared.wire.masking_messages import ThresholdRule


def threshold_of(rule: ThresholdRule, size: int) -> int:
    """Return how many of `size` members must reveal: more than a half, or more than two thirds.

    Example:
        >>> threshold_of(ThresholdRule.HALF, 32), threshold_of(ThresholdRule.TWO_THIRDS, 32)
        (17, 22)
    """
    return (size // 2 if rule is ThresholdRule.HALF else 2 * size // 3) + 1


def most_colluders(threshold: int, size: int) -> int:
    """Return the number of colluding members with which a coordinator still opens one sum of a group at most.

    With one more, two sets of members may agree to different sums (docs/explanation/agreement.md).

    Example:
        >>> most_colluders(threshold=7, size=10), most_colluders(threshold=22, size=32), most_colluders(threshold=5, size=8)
        (3, 11, 1)
    """
    return max(0, 2 * threshold - size - 1)
