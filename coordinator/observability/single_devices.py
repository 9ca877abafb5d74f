"""The choice of the single devices that have series of their own: in a large fleet the worst of each question in turn.

Prometheus keeps every series it has ever seen, so their number is bounded (`metrics_max_devices`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest


@dataclass
class History:
    """The record of a device since this coordinator started. `slow_s` is the last wait for it, with any outcome."""

    online: bool = False
    declines: int = 0
    failures: int = 0
    disconnects: int = 0
    slow_s: float = 0.0
    round_s: float | None = None
    download_s: float | None = None
    train_s: float | None = None
    user_accuracy_before: float | None = None
    user_accuracy_after: float | None = None


def answers_of(history: History, *, away: bool, in_trouble: bool) -> Sequence[float]:
    """Return a number for each question to which the series of a device are the answer: the larger, the worse; 0: nothing.

    The questions: who is slow, fails, declines, comes and goes, is offline, shows a sign of trouble?

    Args:
        away: Whether it is offline, and no operator has taken it out.
        in_trouble: Whether its vitals show a sign of trouble.
    """
    counts = (history.failures, history.declines, history.disconnects)
    return (history.slow_s, *counts, float(away), float(in_trouble))


def worst_in_turn(answers: Mapping[str, Sequence[float]], most: int) -> set[str]:
    """Choose devices by several questions: the worst of each question in turn, then those without a bad answer by name.

    Args:
        answers: By device a number for each question: the larger, the worse; 0: nothing to tell.
    """
    count = len(next(iter(answers.values()), ()))
    ranked = [
        sorted(
            (device for device, of in answers.items() if of[one] > 0),
            key=lambda device: (-answers[device][one], device),
        )
        for one in range(count)
    ]
    turns = (device for places in zip_longest(*ranked) for device in places if device is not None)
    return set(islice(dict.fromkeys(chain(turns, sorted(answers))), most))
