"""One run in a report: its figures, its charts, its tables, its settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from coordinator.report.bar_chart import Bars, bars_figure
from coordinator.report.chart import Title
from coordinator.report.data_tables import (
    MAX_DEVICES,
    bounded_table,
    devices_table,
    folded,
    reasons_table,
    rounds_table,
    table,
)
from coordinator.report.line_chart import Curves, Line, curves_figure
from coordinator.report.markup import Markup, element, joined
from coordinator.report.scales import unit_for
from coordinator.report.series import (
    BYTE_UNITS,
    MAX_BYTES,
    MISSING_KINDS,
    PHASES,
    TIME_UNITS,
    Run,
    by_round,
    curve,
    device_curves,
    missing,
    phase_seconds,
    within,
)
from shared.quantities import accuracy, duration, size

_OPEN_ROWS = 20
_OTHER_CURVES = (("user_accuracy_p10", "p10"), ("user_accuracy_min", "worst"), ("user_accuracy_after", "after"))


def run_section(run: Run, key: str) -> Markup:
    """All of a run; `key` makes its ids differ from those of other runs in the page."""
    info = run.info
    terms = f"{info.task}, {info.strategy}, private {info.private}, begun {moment(info.created_at)}: {run.status}"
    heading = element("h2", "Run ", element("code", info.id), id=key)
    parts = [heading, element("p", terms), summary(run)]
    if run.records:
        parts += _charts(run, key)
        parts += [element("h3", "Declines and failures"), reasons_table(run)]
        if (bounded := bounded_table(run)) is not None:
            parts += [element("h3", "Bounded updates"), bounded]
        parts += [element("h3", "All rounds")]
        count = len(run.records)
        rounds = rounds_table(run)
        parts.append(rounds if count <= _OPEN_ROWS else folded(f"The table of {count:,} rounds", rounds))
    else:
        parts.append(
            element("p", "No round of this run is over yet." if info.status == "running" else "It has no rounds.")
        )
    parts += [element("h3", "Configuration"), settings_table(run)]
    return element("section", *parts, aria_labelledby=key)


def summary(run: Run) -> Markup:
    """What it came to, in a few figures."""
    failed = sum(record.outcome != "aggregated" for record in run.records)
    rounds = f"{len(run.records) - failed:,}" + (f" and {failed:,} failed" if failed else "")
    pairs = [
        ("rounds aggregated", rounds),
        (f"{run.metric.words}, last", accuracy(run.last)),
        (f"{run.metric.words}, best", accuracy(run.best)),
        ("target", accuracy(run.target)),
        ("time in rounds", duration(run.seconds)),
        ("down", bytes_words(run, "bytes_down")),
        ("up", bytes_words(run, "bytes_up")),
    ]
    return element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in pairs))


def bytes_words(run: Run, name: str) -> str:
    """Of all rounds together; `name` is that of the field of a record."""
    return size(within(sum(within(getattr(one, name), MAX_BYTES) for one in run.records), MAX_BYTES))


def settings_table(run: Run) -> Markup:
    """The settings that the run keeps, which are all but the secret ones."""
    rows = [(name, setting_words(value)) for name, value in sorted(run.info.settings.items())]
    return folded(f"{len(rows)} settings", table("Settings", ("setting", "value"), rows, texts=2))


def setting_words(value: Any) -> str:
    """A setting as a configuration file has it, more or less."""
    return value if isinstance(value, str) else "not set" if value is None else json.dumps(value, ensure_ascii=False)


def moment(unix_s: float) -> str:
    """A time of the clock, in UTC: a page may be read anywhere."""
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


def curve_words(run: Run) -> str:
    """What a curve of the run's user accuracy says, for those who do not see it."""
    known = [(one.round, one.user_accuracy) for one in run.aggregated if one.user_accuracy is not None]
    if not known:
        return "No device measured it."
    (first, began), (last, ended) = known[0], known[-1]
    told = f"{accuracy(ended)} in round {last}"
    return (
        f"The mean was {told}."
        if first == last
        else f"The mean went from {accuracy(began)} in round {first} to {told}."
    )


def capital(words: str) -> str:
    """The words as a heading."""
    return words[:1].upper() + words[1:]


def failed_at(run: Run) -> list[float]:
    """Rounds that failed, on an axis of rounds."""
    places = zip(by_round(run.records), run.records, strict=True)
    return [at for at, record in places if record.outcome != "aggregated"]


def _charts(run: Run, key: str) -> Sequence[Markup]:
    heading = element(
        "h3", "User accuracy" if run.metric.is_accuracy else f"User accuracy, measured as {run.metric.words}"
    )
    return [heading, _curves(run, key), _devices(run, key), element("h3", "Rounds"), *_bars(run, key)]


def _curves(run: Run, key: str) -> Markup:
    records, at = run.records, by_round(run.records)
    names = dict(
        zip(("p10", "worst", "after"), (run.tenth_words, run.worst_words, "mean after local training"), strict=True)
    )
    lines = [Line("mean", curve(at, records, "user_accuracy"), "mean")]
    lines += [Line(names[look], points, look) for field, look in _OTHER_CURVES if (points := curve(at, records, field))]
    when = "before each round's training, over the devices that reported"
    told = f"{curve_words(run)} Measured on the devices' test data, {when}."
    title = Title(f"{key}-ua", f"{capital(run.metric.words)} by round", told, "round")
    return curves_figure(Curves(title, lines, run.target, failed_at(run)))


def _devices(run: Run, key: str) -> Markup:
    curves = device_curves(run.records, MAX_DEVICES)
    if not curves:
        return element("p", "The user accuracy of single devices is kept only of rounds in which few report.")
    mean = Line("mean", curve(by_round(run.records), run.records, "user_accuracy"), "mean")
    lines = [mean, *(Line(device, points, "faint", faint=True) for device, points in curves.items())]
    told = f"One curve for each of {len(curves)} devices; the table has their names."
    if len(curves) == MAX_DEVICES:
        told += " More are not shown: these were measured most often."
    title = Title(f"{key}-devices", f"{capital(run.metric.words)} of each device", told, "round")
    return joined(curves_figure(Curves(title, lines)), folded("The devices as a table", devices_table(run)))


def _bars(run: Run, key: str) -> list[Markup]:
    kinds = ("reported", *MISSING_KINDS, "late")
    terms = (
        ("phases", "Time by phase", TIME_UNITS, PHASES, phase_seconds, duration),
        ("who", "Devices", (("devices", 1.0),), kinds, _who, lambda value: f"{value:.3g}"),
        ("bytes", "Bytes", BYTE_UNITS, ("down", "up"), _bytes, size),
    )
    drawn = []
    for name, heading, units, parts, values_of, words in terms:
        told = _bars_words(run, parts, values_of, words)
        unit, unit_size = unit_for(max(sum(values_of(record)) for record in run.records), units)
        title = Title(f"{key}-{name}", f"{heading} by round", told, "round", unit)
        drawn.append(bars_figure(Bars(title, parts, run.records, values_of, words, unit_size)))
    return drawn


def _bars_words(run: Run, parts: Sequence[str], values_of: Any, words: Any) -> str:
    sums = [sum(column) for column in zip(*map(values_of, run.records), strict=True)]
    shares = [f"{name} {words(value / len(run.records))}" for name, value in zip(parts, sums, strict=True) if value]
    return f"In the mean of all rounds: {', '.join(shares)}." if shares else "There is nothing to show."


def _who(record: Any) -> list[float]:
    counts = [record.reported, *(sum(missing(record, kind).values()) for kind in MISSING_KINDS), record.late]
    return [within(count, MAX_BYTES) for count in counts]


def _bytes(record: Any) -> list[float]:
    return [within(record.bytes_down, MAX_BYTES), within(record.bytes_up, MAX_BYTES)]
