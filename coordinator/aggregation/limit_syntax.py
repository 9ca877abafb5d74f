"""The bounds of a run for each update (its weight in examples, the norm of its change), and the rule that aggregates them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedpatch.shared.errors import UsageError

MAX_NAMED, MAX_PARTS = 16, 4
"""Greatest number of bounded devices in a record, and of parts of each, so that a large fleet does not fill the record."""

Action = Literal["off", "clip", "reject", "auto"]


@dataclass(frozen=True)
class NormBound:
    """The bound on the norm of an update's change.

    `clip` and `reject` act at the norm `limit`; `auto` clips at `limit` times the median norm of the round's updates. Each
    action but `off` also clips the statistics of batch norm, at a multiple of their median
    (coordinator/aggregation/norm_limits.py).
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


Rule = Literal["mean", "centred", "trimmed"]


@dataclass(frozen=True)
class AggregateRule:
    """The rule that aggregates the updates of a round (coordinator/aggregation/robust_rules.py).

    Attributes:
        name: The rule.
        radius: Radius of `centred`; None: the median distance of the round.
        beta: Share of the devices that `trimmed` leaves out at each end.
    """

    name: Rule = "mean"
    radius: float | None = None
    beta: float = 0.0


@dataclass(frozen=True)
class Limits:
    """The bounds of a run.

    Attributes:
        norm: The bound on the norm of an update's change.
        examples: The cap on the weight of an update.
        rule: The rule that aggregates the updates.
        max_devices: Greatest number of devices that the run knows at a time.
        max_members: Most devices that one device may speak for (a relay); 1: no relay takes part.
    """

    norm: NormBound = NormBound()
    examples: ExamplesCap = ExamplesCap()
    rule: AggregateRule = AggregateRule()
    max_devices: int = 100_000
    max_members: int = 1


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


def parse_aggregate_rule(text: str) -> AggregateRule:
    """Parse `mean`, `centred[:TAU]` or `trimmed:BETA`; raise UsageError for any other text."""
    name, _, number = text.partition(":")
    if text in ("mean", "centred"):
        return AggregateRule(text)  # type: ignore[arg-type]  # one of the two
    if name == "centred" and (radius := _positive(number)):
        return AggregateRule("centred", radius=radius)
    if name == "trimmed" and (beta := _positive(number)) and beta < 0.5:
        return AggregateRule("trimmed", beta=beta)
    raise UsageError(
        f"{text!r} is no rule; write mean, centred, centred:TAU with a distance above 0, or trimmed:BETA "
        "with a share above 0 and below 0.5"
    )


def _positive(number: str) -> float | None:
    try:
        value = float(number)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
