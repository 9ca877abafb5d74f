"""Queries of panels and the look of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, WARNING, BAD, IDLE = "green", "orange", "red", "#808080"


@dataclass(frozen=True)
class Query:
    """A query of Prometheus and the name of a series of its answer, e.g. `{{phase}}`."""

    expr: str
    legend: str = "__auto"


@dataclass(frozen=True)
class Look:
    """How a panel shows its numbers.

    `unit` is one of Grafana's ids (s, bytes, percentunit, ...). `width` is in columns, of which a dashboard has 24;
    `height` is in rows. `steps` are colours from a value on; below the first of them it is green. `words` say what a
    number means, and its colour. `link` is where a click on a series leads.
    """

    unit: str = "short"
    width: int = 12
    height: int = 8
    decimals: int | None = None
    least: float | None = None
    most: float | None = None
    steps: Sequence[tuple[float, str]] = ()
    words: Sequence[tuple[int, str, str]] = ()
    link: str = ""


SMALL = Look(width=4, height=4)
