"""The bounds of a run for each update: its weight in examples, and the norm of its change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedpatch.shared.errors import UsageError

MAX_NAMED, MAX_PARTS = 16, 4
"""Bounded devices that a record names, and parts of each, so that a fleet of thousands does not fill the record."""

Action = Literal["off", "clip", "reject", "auto"]


@dataclass(frozen=True)
class NormBound:
    """The bound on the norm of an update's change.

    `clip` and `reject` act at the norm `limit`; `auto` clips at `limit` times the median norm of the round's updates. Each
    action but `off` also clips the statistics of batch norm, at a multiple of their median
    (coordinator/aggregation/norm_clipping.py).
    """

    action: Action = "off"
    limit: float = 0.0


@dataclass(frozen=True)
class ExamplesCap:
    """The cap on the weight of an update.

    Attributes:
        most: Greatest number of examples; None for no cap.
        factor: Greatest multiple of the median number of examples in the round; None for no cap.
    """

    most: int | None = None
    factor: float | None = None


@dataclass(frozen=True)
class Limits:
    """The bounds of a run.

    Attributes:
        norm: The bound on the norm of an update's change.
        examples: The cap on the weight of an update.
        max_devices: Greatest number of devices that the run knows at a time.
    """

    norm: NormBound = NormBound()
    examples: ExamplesCap = ExamplesCap()
    max_devices: int = 100_000


def parse_norm_bound(text: str) -> NormBound:
    """Parse `off`, `clip:X`, `reject:X` or `auto:F`; raise UsageError for any other text."""
    word, _, number = text.partition(":")
    if text == "off":
        return NormBound()
    if word in ("clip", "reject", "auto") and (value := _positive(number)):
        return NormBound(word, value)  # type: ignore[arg-type]  # one of the three
    raise UsageError(f"{text!r} is no norm bound; write off, clip:X, reject:X or auto:F with a number above 0")


def parse_examples_cap(text: str) -> ExamplesCap:
    """Parse `off`, a number of examples, or `auto:F`; raise UsageError for any other text."""
    if text == "off":
        return ExamplesCap()
    if text.isascii() and text.isdigit() and int(text) > 0:
        return ExamplesCap(most=int(text))
    word, _, number = text.partition(":")
    if word == "auto" and (value := _positive(number)) and value >= 1:
        return ExamplesCap(factor=value)
    raise UsageError(
        f"{text!r} is no cap; write off, a number of examples, or auto:F with F times the median, 1 or more"
    )


def _positive(number: str) -> float | None:
    try:
        value = float(number)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
