"""Several runs beside each other: the curves in one chart, the figures and the settings that differ in tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from coordinator.records import RoundRecord
from coordinator.report.chart import Title
from coordinator.report.data_tables import table
from coordinator.report.line_chart import Curves, Line, curves_figure
from coordinator.report.markup import Markup, element
from coordinator.report.scales import unit_for
from coordinator.report.sections import bytes_words, capital, setting_words
from coordinator.report.series import TIME_UNITS, Run, by_round, by_time, curve, reasons
from shared.quantities import accuracy, duration

MAX_RUNS = 12
"""In one report: as many curves can be told apart, by six colours, whole and broken."""


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
    parts += [element("h3", "Settings that differ"), settings_table(runs)]
    return element("section", *parts, aria_labelledby=key)


def figures_table(runs: Sequence[Run]) -> Markup:
    """What each run came to."""
    headings = ("run", "task", "strategy", "private", "status", "rounds", "UA last", "best", "rounds to target")
    rows = [
        (
            run.info.id, run.info.task, run.info.strategy, run.info.private, run.status, f"{len(run.aggregated):,}",
            accuracy(run.last), accuracy(run.best), rounds_to_target(run), duration(run.seconds),
            *(bytes_words(run, name) for name in ("bytes_down", "bytes_up")),
            f"{sum(reasons(run.records).values()):,}",
        )
        for run in runs
    ]  # fmt: skip
    return table("Runs", (*headings, "time in rounds", "down", "up", "declines and failures"), rows, texts=5)


def rounds_to_target(run: Run) -> str:
    """How many rounds were completed before the first that began at the target."""
    if run.target is None:
        return "-"
    for done, record in enumerate(run.aggregated):
        if record.user_accuracy is not None and run.metric.reached(record.user_accuracy, run.target):
            return str(done)
    return "not reached"


def settings_table(runs: Sequence[Run]) -> Markup:
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
    lines = [
        Line(run.info.id, curve(places(run.records), run.records, "user_accuracy"), f"run{at}") for at, run in runs
    ]
    ends = ", ".join(f"{run.info.id} {accuracy(run.last)}" for _, run in runs)
    title = Title(key, f"{capital(measure)} by {x_words}", f"The mean of each run; at the end: {ends}.", x_words)
    return curves_figure(Curves(title, lines, rounds=places is by_round))
