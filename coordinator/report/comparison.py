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
    parts += [element("h3", "Settings that differ"), settings_table(runs)]
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
    names = labels([run for _, run in runs])
    lines = [
        Line(names[run.info.id], curve(places(run.records), run.records, "user_accuracy"), f"run{at}")
        for at, run in runs
    ]
    ends = ", ".join(f"{names[run.info.id]}: {accuracy(run.last)}" for _, run in runs)
    title = Title(key, f"{capital(measure)} by {x_words}", f"The mean of each run; at the end: {ends}.", x_words)
    return curves_figure(Curves(title, lines, rounds=places is by_round))
