"""Results of benchmarks.network.coordination as Markdown tables and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.support.documents import Document, machine_line, table, within
from fedpatch.shared.app.formatting import size
from fedpatch.simulator.experiment.plots import save

_FEW_DEVICES = 10
_MODELS = {"mnist": "2NN", "cifar10": "CNN"}


def tables(document: Document) -> Iterator[str]:
    """Yield a row for each contestant, and the results of the goals."""
    yield machine_line(document)
    yield ""
    yield from table(
        (
            "model",
            "devices",
            "a round of",
            "seconds",
            "CPU",
            "to bare",
            "CPU to bare",
            "to bare on disk",
            "CPU to bare on disk",
        ),
        (_row(one, contest) for one in document["measured"] for contest in one["contests"]),
    )
    for one in document["measured"]:
        yield from _goals(one)


def _row(one: dict[str, Any], contest: dict[str, Any]) -> tuple[str, ...]:
    ratios = (contest.get(f"{what}_ratio_to_{to}") for to in ("bare", "bare_durable") for what in ("wall", "cpu"))
    return (
        f"{_model(one)}, {size(one['model_bytes'])}",
        f"{one['devices']:,}",
        contest["what"],
        within(contest["wall_s"], 3),
        f"{contest['cpu_s']['median']:.3f}",
        *(within(ratio) if ratio else "-" for ratio in ratios),
    )


def _goals(one: dict[str, Any]) -> Iterator[str]:
    """Yield the goals: against Flower for the fewest devices, against the bare exchange for all."""
    contests = {contest["name"]: contest for contest in one["contests"]}
    where = f"{_model(one)}, {one['devices']} devices"
    if "flower" in contests:
        for contest in one["contests"]:
            if contest["name"].startswith("fedpatch"):
                ratio = contests["flower"]["wall_s"]["median"] / contest["wall_s"]["median"]
                yield f"\n{where}: Flower's deployment takes {ratio:.0f} times as long as {contest['what']} (goal: 100)"
    if "bare" in contests:
        for contest in one["contests"]:
            if contest["name"].startswith("fedpatch"):
                wall, cpu = within(contest["wall_ratio_to_bare"]), within(contest["cpu_ratio_to_bare"])
                goal = 1.5 if one["devices"] <= _FEW_DEVICES else 1.3
                yield f"\n{where}: {contest['what']} takes {wall} times the seconds of the bare exchange (goal: {goal})"
                yield f"{where}: {contest['what']} takes {cpu} times its processor time (goal: 2)"


def _model(one: dict[str, Any]) -> str:
    return str(_MODELS.get(one["task"], one["task"]))


def draw(document: Document, folder: Path) -> None:
    """Draw seconds per round over the number of devices, as coordination.svg."""
    from matplotlib.figure import Figure

    tasks = sorted({one["task"] for one in document["measured"]}, reverse=True)
    figure = Figure(figsize=(4.6 * len(tasks), 3.8), layout="constrained")
    for number, task in enumerate(tasks, start=1):
        axes = figure.add_subplot(1, len(tasks), number)
        lines: dict[str, list[tuple[int, float]]] = {}
        for one in document["measured"]:
            for contest in one["contests"] if one["task"] == task else ():
                lines.setdefault(contest["what"], []).append((one["devices"], contest["wall_s"]["median"]))
        for what, points in lines.items():
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=what)
        axes.set(xlabel="devices", ylabel="seconds per round, no training", title=_MODELS.get(task, task))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    save(figure, folder / "coordination")
