"""The two facts about power, and the words in which sources of power report them."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedpatch.device_agent.sensors.device_facts import Fact

_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


class Power(NamedTuple):
    """The two facts about power, from one source."""

    external: Fact[bool]
    battery_percent: Fact[float]


def parse_percent(text: str | None) -> float | None:
    """A number from 0 to 100; None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0.0 <= value <= 100.0 else None


def percent_of(text: str | None, source: str) -> Fact[float]:
    """Return the charge of a battery; unknown if the text is no percentage."""
    value = parse_percent((text or "").strip().removesuffix("%"))
    if value is not None:
        return Fact(value, source)
    return Fact.unknown(f"{source} is missing" if text is None else f"{source} is {text[:40]!r}, not a percentage")


def truth_of(text: str | None) -> bool | None:
    """Return whether a word says on or off; None for any other word."""
    word = (text or "").strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def pairs_of(text: str, between: str) -> dict[str, str]:
    """Return the pairs NAME, VALUE of lines of text, with names in lower case."""
    lines = (line.partition(between) for line in text.splitlines())
    return {name.strip().lower(): value.strip() for name, found, value in lines if found}
