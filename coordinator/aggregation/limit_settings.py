"""How far one device may go, as the terms of a run: what its update may weigh and change, when it is put into quarantine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedpatch.shared.errors import UsageError

MAX_NAMED, MAX_PARTS = 16, 4
"""Devices that a record names as bounded, and parts of each: a fleet of thousands must not fill it."""

Action = Literal["off", "clip", "reject", "auto"]


@dataclass(frozen=True)
class NormBound:
    """`clip` and `reject` at the norm `limit`; `auto` clips at `limit` times the median of the round's updates.

    With each but `off`, what a batch norm tracks is clipped too, at a multiple of the median
    (coordinator/aggregation/norm_clipping.py).
    """

    action: Action = "off"
    limit: float = 0.0


@dataclass(frozen=True)
class ExamplesCap:
    """An update weighs no more than `most` examples, or than `factor` times the median of its round; None: no such cap."""

    most: int | None = None
    factor: float | None = None


@dataclass(frozen=True)
class Limits:
    """The bounds of a run. No more than `max_devices` are known at a time."""

    norm: NormBound = NormBound()
    examples: ExamplesCap = ExamplesCap()
    max_devices: int = 100_000


def parse_norm_bound(text: str) -> NormBound:
    """`off`, `clip:X`, `reject:X` or `auto:F`; UsageError for anything else."""
    word, _, number = text.partition(":")
    if text == "off":
        return NormBound()
    if word in ("clip", "reject", "auto") and (value := _positive(number)):
        return NormBound(word, value)  # type: ignore[arg-type]  # one of the three
    raise UsageError(f"{text!r} is no norm bound; write off, clip:X, reject:X or auto:F with a number above 0")


def parse_examples_cap(text: str) -> ExamplesCap:
    """`off`, a number of examples, or `auto:F`; UsageError for anything else."""
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
