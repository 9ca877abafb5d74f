"""The page of a report: figures, charts and tables of runs, which the template page.html.j2 puts into one HTML file.

The page loads nothing and runs nothing. jinja2 escapes every text, so that no name of a device or a run becomes markup.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedpatch.coordinator.report.charts import COLOURS, Chart, Line, svg
from fedpatch.coordinator.report.incidents import absences
from fedpatch.coordinator.report.series import (
    BYTE_UNITS,
    MAX_BYTES,
    MAX_ROUND,
    MISSING_KINDS,
    PHASES,
    TIME_UNITS,
    Run,
    by_round,
    by_time,
    curve,
    device_curves,
    missing,
    phase_seconds,
    plain_text,
    reasons,
    round_seconds,
    stretches,
    unit_for,
    within,
)
from fedpatch.coordinator.rounds.learning_alone import headline
from fedpatch.coordinator.rounds.round_record import RoundRecord, pulled_most
from fedpatch.shared.app.formatting import accuracy, counted, duration, size
from fedpatch.shared.tasks.gains import gain_words

FIRST_ROWS, LAST_ROWS = 100, 400
"""Rounds in the table of a long run: from its beginning, and from its end."""
MAX_DEVICES = 32
MAX_RUNS = 12
"""Runs in one report at most: six colours, solid and dashed, distinguish this many curves."""
MAX_BARS = 120
"""Bars in one chart at most; with more rounds, a bar is the mean of several."""
_MAX_REASONS = _MAX_INCIDENTS = 100
_OPEN_ROWS = 20
_RUN_COLOURS = 6
_LABEL_PARTS = 3


@dataclass(frozen=True)
class Tile:
    """A tile of the page: its name, a figure, and a short line below, or ""."""

    name: str
    figure: str
    line: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        name: Its accessible name.
        headings: One for each column.
        rows: Cells; the first of a row is its heading.
        texts: How many columns hold text; numbers follow, aligned to the right.
        note: A sentence on rows that are left out, or "".
    """

    name: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    note: str = ""
    columns: bool = False
    """True if all columns share the width of the page, so that long words break and nothing is cut."""


def make_page(runs: Sequence[Run], made_at: float, version: str) -> str:
    """The report of one run, or of several with a comparison first, as HTML.

    Args:
        runs: At least one; at most MAX_RUNS.
        made_at: Time of the report in unix seconds.

    Returns:
        The text of the file.
    """
    ids = ", ".join(run.info.id for run in runs)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        title=f"Run {ids}" if len(runs) == 1 else f"{len(runs)} runs compared",
        made=f"Made {_moment(made_at)} by fedpatch {version}",
        open=any(run.info.status == "running" for run in runs),
        comparison=_comparison(runs) if len(runs) > 1 else None,
        runs=[_run_section(run, f"run-{number}") for number, run in enumerate(runs, 1)],
        colours=COLOURS,
        svg=svg,
    )


def _printable(value: Any) -> Any:
    return plain_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _run_section(run: Run, key: str) -> dict[str, Any]:
    """The values of the template for one run; `key` makes its ids differ from those of other runs in the page."""
    info = run.info
    section = {
        "key": key,
        "id": info.id,
        "terms": f"{info.task}, {info.strategy}, private {info.private}, begun {_moment(info.created_at)}: {run.status}",
        "figures": _figures(run),
        "gain": _gain_sentence(run),
        "settings": Table(
            "Settings", ("setting", "value"), [(name, _setting(run, name)) for name in sorted(info.settings)], texts=2
        ),
        "empty": "No round of this run is over yet." if info.status == "running" else "It has no rounds.",
        "records": len(run.records),
    }
    if not run.records:
        return section
    return section | {
        "measured": "" if run.metric.is_accuracy else f", measured as {run.metric.words}",
        "accuracy": accuracy_chart(run, key),
        "devices": _devices_chart(run, key),
        "devices_table": _devices_table(run),
        "bars": bar_charts(run, key),
        "reasons": _reasons_table(run),
        "incidents": _incidents_table(run),
        "bounded": _bounded_table(run),
        "pulls": _pulls_table(run),
        "buffered": _buffered_table(run),
        "rounds": _rounds_table(run),
        "folded": len(run.records) > _OPEN_ROWS,
    }


def _figures(run: Run) -> list[Tile]:
    failed = sum(not record.succeeded for record in run.records)
    return [
        Tile("rounds aggregated", f"{len(run.aggregated):,}", f"{failed:,} failed" if failed else ""),
        Tile(f"{run.metric.words}, last", accuracy(run.last)),
        Tile(f"{run.metric.words}, best", accuracy(run.best)),
        *([_evaluation_tile(run, found)] if (found := run.evaluation) else []),
        Tile("target", accuracy(run.target)),
        *([_gain_tile(compared)] if (compared := run.comparison) else []),
        Tile("time in rounds", duration(run.seconds)),
        Tile("down", _bytes_words(run, "bytes_down")),
        Tile("up", _bytes_words(run, "bytes_up")),
    ]


def _gain_tile(record: RoundRecord) -> Tile:
    """The share of the devices that gain over learning alone, with the mean gain."""
    share, mean = record.independent["gaining"], gain_words(record.independent["gain"], record.label)
    return Tile("devices that gain", f"{share:.0%}".replace("%", " %"), f"{mean}, round {record.round}")


def _gain_sentence(run: Run) -> str:
    """All figures of the last comparison with learning alone; "" without one."""
    if (last := run.comparison) is None:
        return ""
    return f"Gain over learning alone, round {last.round}: {headline(last.independent, last.label)}."


def _evaluation_tile(run: Run, record: RoundRecord) -> Tile:
    """The mean of the last evaluate round, with its worst device."""
    worst = f"{run.worst_words} {accuracy(record.user_accuracy_min)}, round {record.round}"
    return Tile("all devices, mean", accuracy(record.user_accuracy), worst)


def _incidents_table(run: Run) -> Table:
    """Restarts, held and revoked devices, and devices that missed rounds."""
    found = (*run.incidents, *absences(run.records))
    rows = [
        (one.what, one.device or "-", "-" if one.at is None else _moment(one.at), one.detail or "-")
        for one in found[:_MAX_INCIDENTS]
    ]
    more = len(found) - len(rows)
    note = f"{more:,} more are left out here." if more else ""
    return Table("Incidents", ("what", "device", "since", "detail"), rows, texts=4, note=note)


def _reasons_table(run: Run) -> Table:
    """Why devices and rounds gave no result, the most frequent reason first, each with a bar."""
    ranked = sorted(reasons(run.records).items(), key=lambda item: (-item[1], item[0]))
    bar = Markup('<meter aria-hidden="true" value="{:.3f}"></meter>')
    rows = [
        (kind, reason or ("after the round" if kind == "late" else "no reason"), f"{count:,}", bar.format(count / ranked[0][1]))
        for (kind, reason), count in ranked[:_MAX_REASONS]
    ]  # fmt: skip
    return Table("Declines and failures by reason", ("what", "reason", "times", ""), rows, texts=2)


def _bounded_table(run: Run) -> Table:
    """The devices whose updates were bounded, the most frequent first."""
    rounds: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = {}
    for record in run.records:
        for device, found in record.bounded_devices.items():
            rounds[device] += 1
            parts.setdefault(device, Counter()).update(found)
    ranked = sorted(rounds.items(), key=lambda item: (-item[1], item[0]))[:MAX_DEVICES]
    rows = [(device, counted(parts[device]), str(count)) for device, count in ranked]
    return Table("Devices whose updates were bounded", ("device", "what of them", "rounds"), rows, texts=2)


def _buffered_table(run: Run) -> Table:
    """Carried work by round, the last rounds; empty for a run that refuses late updates."""
    headings = (
        "round",
        "updates by staleness",
        "carried",
        "waiting",
        "unused",
        "stale",
        "weights by speed, fastest first",
    )
    rows = [
        (
            str(record.round),
            counted({f"{age}": count for age, count in found.staleness.items()}),
            *(f"{count:,}" for count in (found.carried, found.waiting, found.unused, found.stale)),
            " ".join(f"{share:.1%}" for share in found.weights),
        )
        for record in run.records[-LAST_ROWS:]
        if (found := record.buffered) is not None
    ]
    return Table("Work carried between rounds", headings, rows, texts=2)


def _pulls_table(run: Run) -> Table:
    """The devices whose updates were pulled most by bounds and rule."""
    rows = [
        (device, f"{pull:.0%}".replace("%", " %"), str(count))
        for device, pull, count in pulled_most(run.records)[:MAX_DEVICES]
    ]
    return Table("Devices whose updates were pulled farthest", ("device", "of its change", "rounds"), rows)


def _devices_table(run: Run) -> Table:
    """User accuracy of each device that the records have by name."""
    rows = []
    for device, points in device_curves(run.records, MAX_DEVICES).items():
        values = [value for _, value in points]
        numbers = (values[0], values[-1], min(values), max(values))
        rows.append((device, str(len(values)), *map(accuracy, numbers)))
    return Table(f"{run.metric.words} of each device", ("device", "rounds", "first", "last", "lowest", "highest"), rows)


def _rounds_table(run: Run) -> Table:
    """Every round with all its numbers; of a long run the beginning and the end."""
    records = run.records
    shown, note = records, ""
    if len(records) > FIRST_ROWS + LAST_ROWS:
        shown = (*records[:FIRST_ROWS], *records[-LAST_ROWS:])
        between = f"between {records[FIRST_ROWS - 1].round} and {records[-LAST_ROWS].round}"
        left_out = f"{len(records) - len(shown):,} rounds {between} are left out here"
        note = f"{left_out}; fedpatch report --csv has all of them."
    headings = ["round", "outcome", "reported"]
    headings += [f"{run.metric.label} {word}" for word in ("mean", run.tenth_words, run.worst_words, "after")]
    headings += ["time", *(f"{phase} s" for phase in PHASES), "down", "up", "missing"]
    return Table("Rounds", headings, [_round_row(record) for record in shown], texts=2, note=note)


def _round_row(record: RoundRecord) -> Sequence[str]:
    words = [f"{kind}: {counted(found)}" for kind in MISSING_KINDS if (found := missing(record, kind))]
    measures = (
        record.user_accuracy, record.user_accuracy_p10, record.user_accuracy_min, record.user_accuracy_after
    )  # fmt: skip
    return (
        str(record.round),
        record.outcome_words,
        f"{record.reported}/{record.cohort}",
        *map(accuracy, measures),
        duration(round_seconds(record)),
        *(f"{seconds:.2f}" for seconds in phase_seconds(record)),
        size(within(record.bytes_down, MAX_BYTES)),
        size(within(record.bytes_up, MAX_BYTES)),
        "; ".join([*words, *([f"{record.late} late"] if record.late else [])]),
    )


def _bytes_words(run: Run, name: str) -> str:
    """Bytes of all rounds together; `name` is a field of a record."""
    return size(within(sum(within(getattr(one, name), MAX_BYTES) for one in run.records), MAX_BYTES))


def _setting(run: Run, name: str) -> str:
    """The setting as in a configuration file; "-" where the run, of another version, has none."""
    if name not in run.info.settings:
        return "-"
    value = run.info.settings[name]
    return value if isinstance(value, str) else "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _moment(unix_s: float) -> str:
    """A time of the clock, in UTC: a page may be read anywhere."""
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def accuracy_chart(run: Run, key: str) -> Chart:
    """User accuracy by round: mean, worst tenth, worst device, mean after local training."""
    records, at = run.records, by_round(run.records)
    lines = [
        Line("mean", curve(at, records, "user_accuracy"), "c0"),
        Line(run.tenth_words, curve(at, records, "user_accuracy_p10"), "c1", (8, 3)),
        Line(run.worst_words, curve(at, records, "user_accuracy_min"), "c3", (2, 3)),
        Line("mean after local training", curve(at, records, "user_accuracy_after"), "c2", (10, 3, 2, 3)),
        Line("mean of all devices", curve(at, records, "user_accuracy", "evaluated"), "c4"),
    ]
    when = "before each round's training, over the devices that reported"
    return Chart(
        f"{key}-ua",
        f"{_capital(run.metric.words)} by round",
        f"{_curve_words(run)} Measured on the devices' test data, {when}.",
        "round",
        [line for number, line in enumerate(lines) if line.points or not number],
        level=run.target,
        marks=[x for x, record in zip(at, records, strict=True) if not record.succeeded],
    )


def _curve_words(run: Run) -> str:
    """The mean user accuracy in a sentence, for readers who do not see the curve."""
    known = [(one.round, one.user_accuracy) for one in run.aggregated if one.user_accuracy is not None]
    if not known:
        return "No device measured it."
    (first, began), (last, ended) = known[0], known[-1]
    at_end = f"{accuracy(ended)} in round {last}"
    if first == last:
        return f"The mean was {at_end}."
    return f"The mean went from {accuracy(began)} in round {first} to {at_end}."


def _devices_chart(run: Run, key: str) -> Chart | None:
    curves = device_curves(run.records, MAX_DEVICES)
    if not curves:
        return None
    mean = Line("mean", curve(by_round(run.records), run.records, "user_accuracy"), "c0")
    lines = [mean, *(Line(device, points, "soft", faint=True) for device, points in curves.items())]
    words = f"One curve for each of {len(curves)} devices; the table has their names."
    if len(curves) == MAX_DEVICES:
        words += " More are not shown: these were measured most often."
    return Chart(f"{key}-devices", f"{_capital(run.metric.words)} of each device", words, "round", lines)


def bar_charts(run: Run, key: str) -> list[Chart]:
    """Time by phase, devices by result, and bytes, each as a stacked bar for every round."""
    kinds = ("reported", *MISSING_KINDS, "late")
    terms = (
        ("phases", "Time by phase", TIME_UNITS, PHASES, phase_seconds, duration),
        ("who", "Devices", (("devices", 1.0),), kinds, _device_counts, lambda value: f"{value:.3g}"),
        ("bytes", "Bytes", BYTE_UNITS, ("down", "up"), _bytes, size),
    )
    groups = stretches(run.records, MAX_BARS)
    starts = sorted(within(group[0].round, MAX_ROUND) for group in groups)
    note = f"Each bar is the mean of {len(groups[0])} rounds." if len(groups[0]) > 1 else ""
    charts = []
    for name, heading, units, parts, values_of, words in terms:
        unit, unit_size = unit_for(max(sum(values_of(record)) for record in run.records), units)
        means = [_means(group, values_of) for group in groups]
        lines = [
            Line(part, [(x, mean[at] / unit_size) for x, mean in zip(starts, means, strict=True)], f"c{at}")
            for at, part in enumerate(parts)
        ]
        shares = [
            f"{part} {words(mean)}" for part, mean in zip(parts, _means(run.records, values_of), strict=True) if mean
        ]
        described = f"In the mean of all rounds: {', '.join(shares)}." if shares else "There is nothing to show."
        chart = Chart(f"{key}-{name}", f"{heading} by round", described, "round", lines, unit, bars_note=note)
        charts.append(replace(chart, bars_end=max(starts[-1], *by_round(run.records))))
    return charts


def _means(records: Sequence[RoundRecord], values_of: Callable[[RoundRecord], Sequence[float]]) -> list[float]:
    return [sum(column) / len(records) for column in zip(*map(values_of, records), strict=True)]


def _device_counts(record: RoundRecord) -> list[float]:
    counts = [record.reported, *(sum(missing(record, kind).values()) for kind in MISSING_KINDS), record.late]
    return [within(count, MAX_BYTES) for count in counts]


def _bytes(record: RoundRecord) -> list[float]:
    return [within(record.bytes_down, MAX_BYTES), within(record.bytes_up, MAX_BYTES)]


_TELLING = (
    "task", "strategy", "private", "encoding", "learning_rate", "epochs", "steps", "devices", "participation",
)  # fmt: skip
"""Settings that people compare, the most informative first."""
_NOT_TELLING = frozenset(
    {
        "state_dir",
        "blobs",
        "models_store",
        "models_url",
        "ca_dir",
        "broker",
        "metrics",
        "username",
        "password_file",
        "ca_file",
        "cert_file",
        "key_file",
    }
)
"""Settings of where a run takes place, without effect on its outcome."""


def _comparison(runs: Sequence[Run]) -> dict[str, Any]:
    names = sorted({name for run in runs for name in run.info.settings})
    rows = [(name, *(_setting(run, name) for run in runs)) for name in names]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    headings = ("setting", *(run.info.id for run in runs))
    return {
        "figures": _runs_table(runs),
        "charts": comparison_charts(runs),
        "settings": Table("Settings that differ", headings, differing, texts=1 + len(runs), columns=True),
    }


def _runs_table(runs: Sequence[Run]) -> Table:
    """Outcome of each run, a column for each."""
    names = labels(runs)
    columns = {
        run.info.id: {
            "label": names[run.info.id],
            "task": run.info.task,
            "strategy": run.info.strategy,
            "private": run.info.private,
            "status": run.status,
            "rounds": f"{len(run.aggregated):,}",
            f"{run.metric.label} last": accuracy(run.last),
            f"{run.metric.label} best": accuracy(run.best),
            "rounds to target": rounds_to_target(run),
            "time in rounds": duration(run.seconds),
            "down": _bytes_words(run, "bytes_down"),
            "up": _bytes_words(run, "bytes_up"),
            "declines and failures": f"{sum(reasons(run.records).values()):,}",
        }
        for run in runs
    }
    figures = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, "-") for column in columns.values())) for name in figures]
    return Table("Runs", ("", *columns), rows, texts=1 + len(runs), columns=True)


def comparison_charts(runs: Sequence[Run]) -> list[Chart]:
    """Mean user accuracy of each run by round and by time; runs of different metrics get charts of their own."""
    charts = []
    kinds = {(run.metric.name, run.metric.goal): run.metric.words for run in runs}
    for number, (kind, measure) in enumerate(kinds.items()):
        same = [run for run in runs if (run.metric.name, run.metric.goal) == kind]
        unit, unit_s = unit_for(max(run.seconds for run in same), TIME_UNITS)
        names = labels(same)
        ends = ", ".join(f"{names[run.info.id]}: {accuracy(run.last)}" for run in same)
        for name, x_words, places in (
            ("rounds", "round", by_round),
            ("time", f"{unit} spent in rounds", partial(by_time, unit_s=unit_s)),
        ):
            lines = [
                Line(
                    names[run.info.id],
                    curve(places(run.records), run.records, "user_accuracy"),
                    f"c{at % _RUN_COLOURS}",
                    (7, 3) if at >= _RUN_COLOURS else (),
                )
                for at, run in enumerate(runs)
                if run in same
            ]
            title, words = f"{_capital(measure)} by {x_words}", f"The mean of each run; at the end: {ends}."
            charts.append(Chart(f"comparison-{number}-{name}", title, words, x_words, lines, whole=name == "rounds"))
    return charts


def curves_of(runs: Sequence[Run]) -> list[Chart]:
    """The charts of user accuracy by round: the chart of one run, or charts that compare several."""
    if len(runs) == 1:
        info = runs[0].info
        chart = accuracy_chart(runs[0], "run-1")
        return [replace(chart, title=f"{info.id}: {info.task}, {info.strategy}, private {info.private}, {chart.title}")]
    return [chart for chart in comparison_charts(runs) if chart.whole]


def labels(runs: Sequence[Run]) -> dict[str, str]:
    """The label of each run in legends, by its id: the settings that differ from the others, such as "affine" and "all".

    A label names the first _LABEL_PARTS settings that differ, in the order of _TELLING, then all others by name, then the
    seed; and more, until each run has a label of its own. Runs with the same settings have their ids as labels.
    """
    others = {name for run in runs for name in run.info.settings} - {*_TELLING, *_NOT_TELLING, "seed"}
    found, parts = {run.info.id: "" for run in runs}, 0
    for name in (*_TELLING, *sorted(others), "seed"):
        unique = len(set(found.values())) == len(found)
        if unique and parts >= _LABEL_PARTS:
            break
        if len({_part(name, run) for run in runs}) == 1:
            continue
        longer = {run.info.id: _with(found[run.info.id], _part(name, run)) for run in runs}
        if parts < _LABEL_PARTS or len(set(longer.values())) > len(set(found.values())):
            found, parts = longer, parts + 1
    if len(set(found.values())) == len(found) and all(found.values()):
        return found
    return {id: f"{label}, {id}" if label else id for id, label in found.items()}


def _part(name: str, run: Run) -> str:
    known = {"task": run.info.task, "strategy": run.info.strategy, "private": run.info.private}
    return known.get(name) or f"{name.replace('_', ' ')} {_setting(run, name)}"


def _with(label: str, part: str) -> str:
    return f"{label}, {part}" if label else part


def rounds_to_target(run: Run) -> str:
    """Return the number of rounds completed before the first that began at the target."""
    if run.target is None:
        return "-"
    for done, record in enumerate(run.aggregated):
        if record.user_accuracy is not None and run.metric.reached(record.user_accuracy, run.target):
            return str(done)
    return "not reached"
