"""The tables of a report: what the charts show, as numbers; on a narrow page they scroll by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from coordinator.records import RoundRecord
from coordinator.report.markup import Markup, element, joined
from coordinator.report.series import (
    MAX_BYTES,
    MISSING_KINDS,
    PHASES,
    Run,
    device_curves,
    missing,
    phase_seconds,
    reasons,
    round_seconds,
    within,
)
from shared.quantities import accuracy, counted, duration, size

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
