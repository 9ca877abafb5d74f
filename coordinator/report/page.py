"""The whole page: it loads nothing and runs nothing, and says so to the browser.

The tables of a report: what the charts show, as numbers; on a narrow page they scroll by themselves.

One run in a report: its figures, its charts, its tables, its settings.

Several runs beside each other: the curves in one chart, the figures and the settings that differ in tables.

How a report looks: light and dark, wide and narrow, on a screen and on paper.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fedpatch.coordinator.report.charts import Bars, Curves, LineMark, Title, bars_figure, curves_figure, unit_for
from fedpatch.coordinator.report.markup import Markup, element, joined
from fedpatch.coordinator.report.series import (
    BYTE_UNITS,
    MAX_BYTES,
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
    reasons,
    round_seconds,
    within,
)
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.shared.app.formatting import accuracy, counted, duration, size

FIRST_ROWS, LAST_ROWS = 100, 400
"""Rounds in the table of a long run: so many from its beginning, so many from its end."""
MAX_DEVICES = 32
_MAX_REASONS = 100
_BAR = 120


def table(name: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> Markup:
    """A table called `name`; its first `texts` columns are text, the first is the heading of its row."""
    head = [element("th", one, scope="col", class_=None if at < texts else "number") for at, one in enumerate(headings)]
    body = []
    for row in rows:
        cells = [element("th", row[0], scope="row")]
        cells += [element("td", one, class_=None if at < texts else "number") for at, one in enumerate(row[1:], 1)]
        body.append(element("tr", *cells))
    inner = element("table", element("caption", name), element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=name)


def folded(summary: str, *content: str) -> Markup:
    """What opens at a click, and is open on paper."""
    return element("details", element("summary", summary), *content)


def reasons_table(run: Run) -> Markup:
    """Why devices, and rounds, came to nothing, the most frequent first, each with a bar."""
    ranked = sorted(reasons(run.records).items(), key=lambda item: (-item[1], item[0]))
    if not ranked:
        return element("p", "No device declined, failed, was refused or came late, and no round failed.")
    most = ranked[0][1]
    rows = [
        (kind, reason or ("after the round" if kind == "late" else "no reason"), f"{count:,}", _bar(count / most))
        for (kind, reason), count in ranked[:_MAX_REASONS]
    ]
    return table("Declines and failures by reason", ("what", "reason", "times", ""), rows, texts=2)


def bounded_table(run: Run) -> Markup | None:
    """The devices whose updates counted for less than they came with, the most frequent first; None without any."""
    rounds: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = {}
    for record in run.records:
        for device, found in record.bounded_devices.items():
            rounds[device] += 1
            parts.setdefault(device, Counter()).update(found)
    if not rounds:
        return None
    ranked = sorted(rounds.items(), key=lambda item: (-item[1], item[0]))[:MAX_DEVICES]
    rows = [(device, counted(parts[device]), str(count)) for device, count in ranked]
    return table("Devices whose updates were bounded", ("device", "what of them", "rounds"), rows, texts=2)


def devices_table(run: Run) -> Markup:
    """User accuracy of each device that the records know by name."""
    rows = []
    for device, points in device_curves(run.records, MAX_DEVICES).items():
        values = [value for _, value in points]
        numbers = (values[0], values[-1], min(values), max(values))
        rows.append((device, str(len(values)), *map(accuracy, numbers)))
    return table(f"{run.metric.words} of each device", ("device", "rounds", "first", "last", "lowest", "highest"), rows)


def rounds_table(run: Run) -> Markup:
    """Every round with all its numbers; of a long run the beginning and the end, which it says."""
    records = run.records
    cut = len(records) > FIRST_ROWS + LAST_ROWS
    shown = [*records[:FIRST_ROWS], *records[-LAST_ROWS:]] if cut else records
    label = run.metric.label
    headings = ["round", "outcome", "reported"]
    headings += [f"{label} {word}" for word in ("mean", run.tenth_words, run.worst_words, "after")]
    headings += ["time", *(f"{phase} s" for phase in PHASES), "down", "up", "missing"]
    note = Markup()
    if cut:
        before, after = records[FIRST_ROWS - 1].round, records[-LAST_ROWS].round
        left_out = f"{len(records) - len(shown):,} rounds between {before} and {after} are left out here"
        note = element("p", f"{left_out}; fedpatch report --csv has all of them.")
    body = table("Rounds", headings, (_round_row(one) for one in shown), texts=2)
    return joined(note, body)


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


def _bar(share: float) -> Markup:
    rect = element("rect", x=0, y=1, width=max(1.0, share * _BAR), height=10, class_="part0")
    return element("svg", rect, viewBox=f"0 0 {_BAR} 12", class_="bar", aria_hidden="true")


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
        *([("compared with learning alone", words)] if (words := run.gain_words) else []),
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
    lines = [LineMark("mean", curve(at, records, "user_accuracy"), "mean")]
    lines += [
        LineMark(names[look], points, look) for field, look in _OTHER_CURVES if (points := curve(at, records, field))
    ]
    when = "before each round's training, over the devices that reported"
    told = f"{curve_words(run)} Measured on the devices' test data, {when}."
    title = Title(f"{key}-ua", f"{capital(run.metric.words)} by round", told, "round")
    return curves_figure(Curves(title, lines, run.target, failed_at(run)))


def _devices(run: Run, key: str) -> Markup:
    curves = device_curves(run.records, MAX_DEVICES)
    if not curves:
        return element("p", "The user accuracy of single devices is kept only of rounds in which few report.")
    mean = LineMark("mean", curve(by_round(run.records), run.records, "user_accuracy"), "mean")
    lines = [mean, *(LineMark(device, points, "faint", faint=True) for device, points in curves.items())]
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


MAX_RUNS = 12
"""In one report: as many curves can be told apart, by six colours, whole and broken."""


_TELLING = (
    "task",
    "strategy",
    "private",
    "encoding",
    "seed",
    "learning_rate",
    "steps",
    "epochs",
    "devices",
    "participation",
)
"""Settings that people compare, the most telling first."""
_NOT_TELLING = frozenset(
    {"state_dir", "ca_dir", "broker", "metrics", "username", "password_file", "ca_file", "cert_file", "key_file"}
)
"""Settings of the place of a run, which say nothing of its outcome."""


def comparison(runs: Sequence[Run]) -> Markup:
    """The section of all runs; those whose user accuracies are of different metrics get charts of their own."""
    key = "comparison"
    parts = [element("h2", "The runs compared", id=key), figures_table(runs)]
    kinds = {(run.metric.name, run.metric.goal): run.metric.words for run in runs}
    for number, (kind, measure) in enumerate(kinds.items()):
        same = [(at, run) for at, run in enumerate(runs) if (run.metric.name, run.metric.goal) == kind]
        parts += [_chart(f"{key}-{number}-rounds", measure, same, "round", by_round)]
        unit, size_s = unit_for(max(run.seconds for _, run in same), TIME_UNITS)
        spent = partial(by_time, unit_s=size_s)
        parts += [_chart(f"{key}-{number}-time", measure, same, f"{unit} spent in rounds", spent)]
    parts += [element("h3", "Settings that differ"), compared_settings_table(runs)]
    return element("section", *parts, aria_labelledby=key)


def figures_table(runs: Sequence[Run]) -> Markup:
    """What each run came to."""
    names = labels(runs)
    headings = (
        "run",
        "label",
        "task",
        "strategy",
        "private",
        "status",
        "rounds",
        "UA last",
        "best",
        "rounds to target",
    )
    rows = [
        (
            run.info.id, names[run.info.id],
            run.info.task, run.info.strategy, run.info.private, run.status, f"{len(run.aggregated):,}",
            accuracy(run.last), accuracy(run.best), rounds_to_target(run), duration(run.seconds),
            *(bytes_words(run, name) for name in ("bytes_down", "bytes_up")),
            f"{sum(reasons(run.records).values()):,}",
        )
        for run in runs
    ]  # fmt: skip
    return table("Runs", (*headings, "time in rounds", "down", "up", "declines and failures"), rows, texts=6)


def labels(runs: Sequence[Run]) -> dict[str, str]:
    """The label of each run in legends, by its id: the settings that tell it from the others, such as "affine" and "all".

    Settings are tried in the order of _TELLING, then all others by name, until each run has a label of its own; a
    setting that adds nothing is left out. Runs with the same settings are told apart by their ids.
    """
    found = {run.info.id: "" for run in runs}
    names = [*_TELLING, *sorted({name for run in runs for name in run.info.settings} - {*_TELLING, *_NOT_TELLING})]
    for name in names:
        if len(set(found.values())) == len(found):
            break
        longer = {run.info.id: _with(found[run.info.id], name, run) for run in runs}
        if len(set(longer.values())) > len(set(found.values())):
            found = longer
    if len(set(found.values())) == len(found) and all(found.values()):
        return found
    return {id: f"{label}, {id}" if label else id for id, label in found.items()}


def _with(label: str, name: str, run: Run) -> str:
    value = setting_words(run.info.settings[name]) if name in run.info.settings else "-"
    known = {"task": run.info.task, "strategy": run.info.strategy, "private": run.info.private}
    part = known.get(name) or f"{name.replace('_', ' ')} {value}"
    return f"{label}, {part}" if label else part


def rounds_to_target(run: Run) -> str:
    """How many rounds were completed before the first that began at the target."""
    if run.target is None:
        return "-"
    for done, record in enumerate(run.aggregated):
        if record.user_accuracy is not None and run.metric.reached(record.user_accuracy, run.target):
            return str(done)
    return "not reached"


def compared_settings_table(runs: Sequence[Run]) -> Markup:
    """A row for each setting that is not the same in all runs; where a run has none, it is of another version."""
    names = sorted({name for run in runs for name in run.info.settings})
    rows = []
    for name in names:
        words = [setting_words(run.info.settings[name]) if name in run.info.settings else "-" for run in runs]
        if len(set(words)) > 1:
            rows.append((name, *words))
    if not rows:
        return element("p", "None: all settings are the same.")
    return table("Settings that differ", ("setting", *(run.info.id for run in runs)), rows, texts=1 + len(runs))


def _chart(
    key: str,
    measure: str,
    runs: Sequence[tuple[int, Run]],
    x_words: str,
    places: Callable[[Sequence[RoundRecord]], Sequence[float]],
) -> Markup:
    names = labels([run for _, run in runs])
    lines = [
        LineMark(names[run.info.id], curve(places(run.records), run.records, "user_accuracy"), f"run{at}")
        for at, run in runs
    ]
    ends = ", ".join(f"{names[run.info.id]}: {accuracy(run.last)}" for _, run in runs)
    title = Title(key, f"{capital(measure)} by {x_words}", f"The mean of each run; at the end: {ends}.", x_words)
    return curves_figure(Curves(title, lines, rounds=places is by_round))


# Okabe and Ito's colours, which people of any colour vision tell apart, darkened or lightened until each stands out from
# the ground by 3:1 at least; lines differ in their dashes as well.
_LIGHT = ("0067a8", "c25100", "007a5a", "a8428a", "8a6a00", "3a7ca5", "555b61")
_DARK = ("5ab4f0", "ff9a4d", "3ccb9f", "e58cc8", "e6c53c", "8fd0f5", "a9b1b8")
_DASHES = ("none", "7 3")
_RUN_COLOURS = 6


def _colours(values: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:#{value};" for number, value in enumerate(values))


def _runs() -> str:
    looks = [(dash, colour) for dash in _DASHES for colour in range(_RUN_COLOURS)]
    return "\n".join(
        f".run{number}{{--own:var(--c{colour})}} .curve.run{number}{{stroke-dasharray:{dash}}}"
        for number, (dash, colour) in enumerate(looks)
    )


def _parts(count: int) -> str:
    return "\n".join(f".part{number}{{fill:var(--c{number % len(_LIGHT)})}}" for number in range(count))


STYLE = f"""
:root{{color-scheme:light dark;--ground:#fff;--card:#f4f6f8;--ink:#1b1f23;--soft:#545b62;--rule:#d3d9de;--link:#0058a0;
{_colours(_LIGHT)}}}
@media screen and (prefers-color-scheme:dark){{:root{{--ground:#14181c;--card:#1e242a;--ink:#e8ebee;--soft:#a9b1b8;
--rule:#39424b;--link:#7cc0ff;{_colours(_DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}
main{{max-width:800px;margin:0 auto;padding:12px}}
h1{{font-size:1.5rem;margin:.5rem 0 0}} h2{{font-size:1.25rem;margin:2rem 0 .25rem;border-top:1px solid var(--rule);
padding-top:1rem}} h3{{font-size:1.05rem;margin:1.75rem 0 .5rem}} h4{{font-size:.95rem;margin:0}}
a{{color:var(--link)}} header p,figcaption,.unit,dt{{color:var(--soft)}} .unit{{font-weight:normal}}
dl{{display:grid;grid-template-columns:repeat(auto-fill,minmax(128px,1fr));gap:8px;margin:1rem 0}}
dl div{{background:var(--card);border-radius:6px;padding:6px 10px}} dt{{font-size:.8rem}} dd{{margin:0;font-weight:600}}
figure{{margin:1rem 0;background:var(--card);border-radius:6px;padding:10px;break-inside:avoid}}
figcaption{{font-size:.85rem}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:4px 0;padding:0;font-size:.85rem}}
.swatch{{width:24px;height:12px;vertical-align:-1px}}
.chart{{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}}
.chart text{{fill:var(--soft)}}
.narrow{{display:none}} .end{{text-anchor:end}} .middle{{text-anchor:middle}} .grid{{stroke:var(--rule);stroke-width:1}}
.curve{{fill:none;stroke:var(--own);stroke-width:2;stroke-linejoin:round}} circle{{fill:var(--own);stroke:none}}
.mean{{--own:var(--c0)}} .p10{{--own:var(--c1)}} .worst{{--own:var(--c3)}} .after{{--own:var(--c2)}}
.curve.p10{{stroke-dasharray:8 3}} .curve.worst{{stroke-dasharray:2 3}} .curve.after{{stroke-dasharray:10 3 2 3}}
.level{{--own:var(--ink)}} .curve.level{{stroke-width:1;stroke-dasharray:4 4}} .mark{{--own:var(--c1)}}
.faint{{--own:var(--soft)}} .curve.faint{{stroke-width:1;opacity:.65}} .chart .faint:hover{{stroke:var(--c1);
stroke-width:3;opacity:1}}
{_runs()}
{_parts(10)}
.bar{{width:120px;height:12px;display:block}}
.scroll{{overflow-x:auto;max-width:100%;
background:linear-gradient(to right,var(--ground) 50%,transparent) 0 0/32px 100% no-repeat local,
linear-gradient(to left,var(--ground) 50%,transparent) 100% 0/32px 100% no-repeat local,
linear-gradient(to right,var(--soft),transparent) 0 0/10px 100% no-repeat scroll,
linear-gradient(to left,var(--soft),transparent) 100% 0/10px 100% no-repeat scroll}}
@media screen and (min-width:860px){{.scroll{{position:relative;left:50%;transform:translateX(-50%);width:max-content;
min-width:100%;max-width:min(95vw,1600px)}}}}
 .scroll:focus-visible,summary:focus-visible{{outline:2px solid var(--link)}}
table{{border-collapse:collapse;font-size:.85rem;overflow-wrap:normal}}
caption{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}}
th,td{{text-align:left;padding:3px 8px;border-bottom:1px solid var(--rule);vertical-align:top}}
th{{font-weight:600}} .number{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}}
tr>:first-child{{white-space:nowrap}} td{{max-width:24rem;overflow-wrap:break-word}}
summary{{cursor:pointer;padding:4px 0;color:var(--link)}}
@media screen and (max-width:640px){{.wide{{display:none}} .narrow{{display:block}}}}
@media print{{main{{max-width:none}} figure,dl div{{background:none;border:1px solid var(--rule)}}
.scroll{{overflow:visible;background:none;position:static;transform:none}} table{{font-size:8px}} th,td{{padding:1px 3px}}
details::details-content{{content-visibility:visible;height:auto}} summary{{display:none}}}}
"""


# A browser that keeps to this fetches nothing and runs no script, whatever the page holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def make_page(runs: Sequence[Run], made_at: float, version: str) -> str:
    """The report of one run, or of several with a comparison first, as HTML; `made_at` in unix seconds."""
    ids = ", ".join(run.info.id for run in runs)
    name = f"Run {ids}" if len(runs) == 1 else f"{len(runs)} runs compared"
    going_on = any(run.info.status == "running" for run in runs)
    made = f"Made {moment(made_at)} by fedpatch {version}" + (", while a run was going on." if going_on else ".")
    keys = [f"run-{number}" for number in range(1, len(runs) + 1)]
    parts = [element("header", element("h1", "fedpatch report"), element("p", made))]
    if len(runs) > 1:
        parts += [_contents(runs, keys), comparison(runs)]
    parts += [run_section(run, key) for run, key in zip(runs, keys, strict=True)]
    body = element("body", element("main", *parts))
    return f"<!DOCTYPE html>\n{element('html', _head(f'fedpatch report: {name}'), body, lang='en')}\n"


def _contents(runs: Sequence[Run], keys: Sequence[str]) -> Markup:
    links = [("comparison", "The runs compared"), *((key, run.info.id) for key, run in zip(keys, runs, strict=True))]
    items = [element("li", element("a", words, href=f"#{key}")) for key, words in links]
    return element("nav", element("ul", *items), aria_label="Contents")


def _head(title: str) -> Markup:
    return element(
        "head",
        Markup('<meta charset="utf-8"/>'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1"/>'),
        Markup('<meta name="color-scheme" content="light dark"/>'),
        element("title", title),
        element("style", Markup(STYLE)),
    )
