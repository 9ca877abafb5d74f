"""The result of a comparison as a table in Markdown and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.app.formatting import accuracy, size
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.simulator.comparison.recommend import ALONE, ComparisonRow
from fedpatch.simulator.experiment.plots import BLUE, ORANGE, drawing, save

STEM = "comparison"
_MODE = 0o644
_ROW_IN, _PANEL_IN = 0.28, 2.6


@dataclass(frozen=True)
class TaskTable:
    """The table of one task.

    Attributes:
        title: The task and its size, for headings.
        seeds: Number of seeds.
        metric: The terms of user accuracy.
        rows: A row for each method.
        recommendation: The recommended method, in a sentence; "" if there is none.
    """

    title: str
    seeds: int
    metric: MetricTerms
    rows: Sequence[ComparisonRow]
    recommendation: str = ""


def headings(metric: MetricTerms, target_ua: float | None) -> list[str]:
    """Return the headings of the columns of `cells`."""
    target = "alone" if target_ua is None else accuracy(target_ua)
    return ["method", metric.label, "worst tenth", "better than alone", f"rounds to {target}", "bytes up", "bytes down"]


def cells(row: ComparisonRow, seeds: int) -> list[str]:
    """Return a row as text; bytes are those of one seed."""
    mean = accuracy(row.mean) + ("" if row.spread is None else f" ± {row.spread:.3f}")
    share = "" if row.gaining is None else f"{row.gaining:.0%}"
    reached = f"over {row.rounds}" if row.rounds_to_target is None else f"{row.rounds_to_target:.3g}"
    down = row.num_bytes - row.bytes_up
    return [row.name, mean, accuracy(row.p10), share, reached, size(row.bytes_up // seeds), size(down // seeds)]


def markdown(tables: Sequence[TaskTable], target_ua: float | None) -> str:
    """Return a section with a table for each task."""
    parts = []
    for one in tables:
        names = [*headings(one.metric, target_ua), "learning rate"]
        lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
        lines += [f"| {' | '.join([*cells(row, one.seeds), f'{row.learning_rate:g}'])} |" for row in one.rows]
        seeds = f"{one.seeds} seed{'s' if one.seeds > 1 else ''}"
        parts.append(
            "\n".join(
                [f"## {one.title}, {seeds}", "", *lines, *(["", one.recommendation] if one.recommendation else [])]
            )
        )
    return "\n\n".join(parts) + "\n"


def draw(tables: Sequence[TaskTable], stem: Path) -> Path:
    """Draw mean and worst tenth of each method as `stem`.svg, a panel for each task; return its path."""
    height = 1.0 + _ROW_IN * max(len(one.rows) for one in tables)
    with drawing(1, len(tables), width_in=1.0 + _PANEL_IN * len(tables), height_in=height) as (figure, panels):
        for axes, one in zip(panels[0], tables, strict=True):
            places = range(len(one.rows))
            means, tails = [row.mean for row in one.rows], [row.p10 for row in one.rows]
            errors = [row.spread or 0.0 for row in one.rows]
            tail = "10th percentile" if one.metric.goal == "max" else "90th percentile"
            axes.errorbar(means, places, xerr=errors, fmt="o", color=BLUE, label="mean")
            axes.plot(tails, places, "x", color=ORANGE, label=tail)
            alone = next(row.mean for row in one.rows if row.name == ALONE)
            axes.axvline(alone, color="grey", linewidth=0.8, linestyle="--", label="mean, learning alone")
            axes.set_yticks(places, [row.name for row in one.rows])
            axes.invert_yaxis()
            axes.set(title=one.title, xlabel=one.metric.label)
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        return save(figure, stem)


def write(folder: Path, tables: Sequence[TaskTable], target_ua: float | None) -> None:
    """Write tables and figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{STEM}.md", markdown(tables, target_ua).encode(), mode=_MODE)
    draw(tables, folder / STEM)
