"""Queries of panels and the look of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, WARNING, BAD, IDLE = "green", "orange", "red", "#808080"


@dataclass(frozen=True)
class Query:
    """A query of Prometheus and the name of a series in its answer, such as `{{phase}}`."""

    expr: str
    legend: str = "__auto"


def or_zero(expr: str, label: str, of: str) -> str:
    """Return a query of series by `label` that has a zero, named none, while there is no such series.

    Args:
        expr: The query.
        label: The label in the name of its series.
        of: Selector of the coordinator; without it there is no zero.
    """
    return f'{expr} or on () label_replace(0 * sum(fedpatch_round_number{{{of}}}), "{label}", "none", "", "")'


@dataclass(frozen=True)
class Look:
    """How a panel shows its numbers.

    `unit` is one of Grafana's ids (s, bytes, percentunit, ...). `width` is in columns, of which a dashboard has 24;
    `height` is in rows. `steps` are colours from a value on; values below the first step are green. `words` has the meaning
    of a number, and its colour. `link` is the target of a click on a series. `empty` says why a panel may have no data.
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
    empty: str = "none"


SMALL = Look(width=4, height=4)
