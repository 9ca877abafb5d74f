"""What is kept of a round while it is open, so that another process can go on with it after a crash.

The ledger is on the disk before anybody is invited, an update before its device hears `committed`. Whatever else the round
knew (who trains, what was half uploaded) comes back by asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.messages import UpdateReport


@dataclass(frozen=True)
class Ledger:
    """Of the round `round`: who was invited, to train on the model `base` (its digest).

    Updates of `target` devices are wanted. `accepted` are devices that are known to have agreed. `spent_s` is what had passed
    of the deadline. With `closing` the aggregation has begun: nothing that comes later counts. Updates were asked for in
    `encoding`, and in another of the devices in `negotiated`; "": nobody knows. The round is not meant for those of the
    invited that are `absent`. `offenders` are those whose updates were refused for an offence, each with it.
    """

    round: int
    target: int
    invited: tuple[str, ...]
    base: str
    accepted: frozenset[str] = frozenset()
    spent_s: float = 0.0
    closing: bool = False
    encoding: str = ""
    negotiated: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    offenders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptUpdate:
    """A committed update: the digest that its device knows it by, its bytes as they travelled, what it reports."""

    digest: str
    size_bytes: int
    report: UpdateReport


@dataclass(frozen=True)
class Opening:
    """How a round opens: a new one with a ledger that names no base yet, or one to go on with and what was committed to it."""

    ledger: Ledger
    updates: Mapping[str, KeptUpdate] = field(default_factory=dict)
