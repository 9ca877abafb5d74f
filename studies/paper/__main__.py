"""Compute a table or figure of the paper, and compare it with the paper's: `python -m studies.paper`."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from benchmarks.support.json_lines import UNFINISHED
from fedpatch.shared.app.command import AsJson, command, run_app, say
from fedpatch.shared.app.formatting import accuracy, duration
from fedpatch.shared.app.provenance import source_commit
from fedpatch.shared.app.signals import EXIT_INTERRUPTED, interruptible, stoppable
from fedpatch.shared.errors import FedpatchError, UsageError, unknown_name
from fedpatch.simulator.experiment.plots import require_matplotlib
from fedpatch.simulator.experiment.progress import StudyProgress, make_progress
from fedpatch.simulator.spec.compute import STOPPING, Device, device_name, worker_count
from fedpatch.simulator.spec.study import Point
from studies.paper.experiments import (
    RESTARTS,
    SPLITS,
    TABLE3_EVEN,
    TRIALS,
    TUNING_SEED,
    Cell,
    select_cells,
    select_named_cells,
    study_of,
)
from studies.paper.recheck import Recheck, discard_stale, folder_of, rechecks, require_recorded
from studies.paper.results import Result, ResultOrigin, Results, measurements
from studies.paper.runner import CellWatcher, Sum, run_paper
from studies.paper.tuning import choose_rates, run_tuned
from studies.processor import name_processor

if TYPE_CHECKING:
    from studies.paper.comparison import Comparison

MEASURED = ("fig3", "fig4")  # measured within rounds; other figures are computed from cells
CHECK = "check"
ALL = ("table2", "table3", "fig3", "fig4", "fig5", *SPLITS, TABLE3_EVEN, "tuned", *TRIALS, *RESTARTS, CHECK)


NAME = "python -m studies.paper"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Which = Annotated[str, typer.Argument(metavar="WHICH", help=f"One of {', '.join(ALL)}.", show_default=False)]
Cells = Annotated[
    str | None,
    typer.Option(metavar="GLOBS", help="Globs of the cells to compute."),
]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0 on.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of processes; default: one per CPU core."),
]
Folder = Annotated[
    Path,
    typer.Option("--results", metavar="PATH", file_okay=False, help="Folder of results, which are kept."),
]
OnlySummary = Annotated[
    bool, typer.Option("--summary", help="Compute nothing: show the existing results, or draw a figure from them.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the comparison as Markdown.")]
InsideRounds = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Rounds to measure for fig3 (20) and fig4 (600)."),
]


@command(app, "paper", example=f"{NAME} table2 --cells 'mnist/*/affine/W200/*'")
def paper(  # noqa: PLR0913  (a command has as many arguments as it has options)
    which: Which,
    cells: Cells = None,
    seeds: Seeds = 1,
    workers: Workers = None,
    device: Device = "cpu",
    results: Folder = Path("results"),
    summary: OnlySummary = False,
    markdown: Markdown = False,
    rounds: InsideRounds = None,
    as_json: AsJson = False,
) -> None:
    """Compute the cells of a table or figure of the paper and show them beside the published ones.

    A cell is named task/strategy/private/clients/participation. A repeated command continues; several processes may
    share --results. aligned and even have Table 2's MNIST cells with another split: no test sample (even: few) has a
    label that its client never trains on. table3-even has Table 3's MNIST cells with the split of even. tuned has the
    cells of FedAdam and FedAvg-Adam with learning rates from a grid (where Table 2's rates are the best: Table 2's
    cell); tuning the trials of this grid, tuning-even those with private statistics on the split of even. restarted and
    restarted-even have the MNIST cells of FedAvg-Adam with a count of steps that restarts in each round. check computes
    cells again, and fails where rounds differ by more than a processor's spread. fig3 and fig4 are slow.
    """
    if which not in ALL:
        raise unknown_name("table or figure", which, ALL)
    if markdown and as_json:
        raise UsageError("--markdown and --json are two forms of one comparison; leave one of them out")
    if summary:
        _refuse_with_summary(which, seeds, workers, device, rounds)
    processor = name_processor(device_name(device))
    origin = ResultOrigin(worker_count(workers), device, _command_line(), source_commit(), processor)
    if which in MEASURED:
        if cells is not None or markdown or device != "cpu" or workers is not None:
            raise UsageError(
                f"{which} is a measurement by one process on the CPU, and a picture; "
                "leave out --cells, --markdown, --device and --workers"
            )
        measure = None if summary else partial(_measure, which, results, rounds, origin)
        _draw_measured(which, results, range(seeds), measure, as_json=as_json)
        return
    _refuse_unused(which, seeds, rounds)
    store = Results(results)
    if which == CHECK:
        if markdown:
            raise UsageError("check prints a table or JSON; leave out --markdown")
        again = Results(folder_of(results, processor))
        raise typer.Exit(_check(cells, range(seeds), (store, again), None if summary else origin, as_json=as_json))
    chosen = select_cells(which, cells)
    if which == "fig5":
        require_matplotlib()
    chosen_seeds = (TUNING_SEED,) if which in TRIALS else range(seeds)
    exit_code = 0 if summary else _compute(chosen, chosen_seeds, store, origin)
    if which == "tuned":
        chosen = tuple(choose_rates(one, store) for one in chosen)
    _show(which, chosen, store, "markdown" if markdown else "json" if as_json else "text")
    raise typer.Exit(exit_code)


def _refuse_with_summary(which: str, seeds: int, workers: int | None, device: str, rounds: int | None) -> None:
    """Raise UsageError for options of computations; check shows the results of a device and of some seeds."""
    given = {
        "--seeds": seeds != 1 and which != CHECK,
        "--workers": workers is not None,
        "--device": device != "cpu" and which != CHECK,
        "--rounds": rounds is not None,
    }
    if unused := [name for name, is_given in given.items() if is_given]:
        raise UsageError(f"--summary only shows the existing results; leave out {' and '.join(unused)}")


def _refuse_unused(which: str, seeds: int, rounds: int | None) -> None:
    """Raise UsageError for options that the cells of `which` do not use."""
    if rounds is not None:
        raise UsageError(f"--rounds: the cells of {which} have the paper's; it is for {' and '.join(MEASURED)}")
    if which in TRIALS and seeds != 1:
        raise UsageError(f"--seeds: the trials of {which} have the seed {TUNING_SEED} alone; leave it out")


def _command_line() -> str:
    """Return the command line as a user types it."""
    return f"{NAME} {shlex.join(sys.argv[1:])}"


def _compute(chosen: Sequence[Cell], seeds: Sequence[int], store: Results, origin: ResultOrigin) -> int:
    """Compute cells; return the exit code."""
    plain = logging.getLogger("fedpatch").isEnabledFor(logging.DEBUG)
    try:
        with stoppable(STOPPING) as stopped, ProgressPrinter(plain=plain) as watcher:
            run = run_tuned if chosen[0].where == "tuned" else run_paper
            total = run(chosen, seeds, store, origin, watcher=watcher, stopped=stopped)
    except KeyboardInterrupt:
        say(_how_to_go_on(store))
        raise
    say(_words(total))
    if total.interrupted:
        say(_how_to_go_on(store))
        return EXIT_INTERRUPTED
    return 0


def _check(
    patterns: str | None,
    seeds: Sequence[int],
    stores: tuple[Results, Results],
    origin: ResultOrigin | None,
    *,
    as_json: bool,
) -> int:
    """Compute cells again, unless `origin` is None, and print the comparison; return the exit code.

    `stores` are the recorded results and those of this processor.
    """
    from fedpatch.coordinator.cli.tables import print_json

    if patterns is None:
        raise UsageError("check needs --cells, e.g. --cells 'table2/mnist/fedavg/affine/W200/*'")
    cells = select_named_cells(patterns)
    recorded, again = stores
    require_recorded(cells, seeds, recorded)
    exit_code = 0
    if origin is not None:
        discard_stale(cells, seeds, again, origin)
        exit_code = _compute(cells, seeds, again, origin)
    found = rechecks(cells, seeds, recorded, again)
    wanted = len(cells) * len(seeds)
    if origin is None and len(found) < wanted:
        raise UsageError(
            f"{wanted - len(found)} of {wanted} results are not in {again.folder}: this processor has not computed them "
            "again; leave out --summary to compute them"
        )
    if as_json:
        print_json({"cells": [one.to_dict() for one in found]})
    else:
        for one in found:
            typer.echo(_recheck_line(one))
    return exit_code or (FedpatchError.exit_code if any(one.verdict == "outside" for one in found) else 0)


def _recheck_line(one: Recheck) -> str:
    before, now = (_rounds(result) for result in (one.recorded, one.again))
    words = {"same": "same bits", "within": "within a processor's spread", "outside": "OUTSIDE a processor's spread"}
    return (
        f"{one.again.cell}, seed {one.again.study.seed}: recorded {before}, again {now} "
        f"(user accuracy differs by at most {one.largest_difference:.4f}): {words[one.verdict]}"
    )


def _rounds(result: Result) -> str:
    if result.diverged is not None:
        return "div."
    return "X" if result.rounds_to_target is None else f"{result.rounds_to_target} rounds"


def _words(total: Sum) -> str:
    parts = [f"computed {total.computed}"]
    if total.present:
        parts.append(f"{total.present} there before")
    if total.elsewhere:
        parts.append(f"{total.elsewhere} taken by another process")
    if total.diverged:
        parts.append(f"{total.diverged} diverged")
    if total.left:
        parts.append(f"{total.left} left")
    return ", ".join(parts)


def _how_to_go_on(store: Results) -> str:
    return f"to go on, give the same command again: it takes up what is in {store.folder / UNFINISHED}"


class ProgressPrinter(CellWatcher):
    """Prints to stderr the current cell, its progress, and each result in one line."""

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain
        self._progress: StudyProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def begins(self, cell: Cell, seed: int, place: int, count: int) -> None:
        """Begin to show the progress of a cell."""
        self._end()
        self._progress = make_progress(sys.stderr, study_of(cell, seed), plain=self._plain)
        self._progress.__enter__()
        self._progress.say(f"{place} of {count}: {cell.name}, seed {seed}")

    def point(self, cell: Cell, seed: int, point: Point) -> None:
        """Show the point."""
        if self._progress is not None:
            self._progress.show(point)

    def finished(self, cell: Cell, seed: int, result: Result) -> None:
        """Print our result, the paper's, and the computing time."""
        self._end()
        say(f"{cell.name}, seed {seed}: {_outcome(cell, result)}, {duration(result.seconds)}")

    def diverged(self, cell: Cell, seed: int, error: str) -> None:
        """Print the reason why the training ended."""
        self._end()
        say(f"{cell.name}, seed {seed}: training diverged: {error}")

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None


def _outcome(cell: Cell, result: Result) -> str:
    ua = f"user accuracy {accuracy(result.user_accuracy)}"
    if cell.target_ua is None:
        return f"{ua} after {result.rounds} rounds"
    ours = f"X ({ua})" if result.rounds_to_target is None else f"{result.rounds_to_target} rounds"
    theirs = "X" if cell.paper is None else cell.paper
    return f"{ours}, the paper {theirs}" if cell.compared else ours


def _show(which: str, chosen: Sequence[Cell], store: Results, form: str) -> None:
    from fedpatch.coordinator.cli.tables import print_json, print_table
    from studies.paper.comparison import compare, legend, markdown, rich_table, tables, to_json

    comparisons = compare(store, chosen)
    if which == "fig5":
        _draw_fig5(compare(store, select_cells(which, None)), store.folder)
    if form == "json":
        print_json(to_json(comparisons))
    elif form == "markdown":
        typer.echo(markdown(comparisons), nl=False)
    else:
        for grid in tables(comparisons):
            print_table(rich_table(grid))
            typer.echo()
        typer.echo(legend(comparisons))


def _draw_fig5(comparisons: Sequence[Comparison], folder: Path) -> None:
    from studies.paper.figures import draw_fig5

    if any(one.results for one in comparisons):
        say(f"drawn: {draw_fig5(comparisons, folder / 'fig5')}")


def _draw_measured(
    which: str, folder: Path, seeds: Sequence[int], measure: Callable[[int], dict[str, Any]] | None, *, as_json: bool
) -> None:
    """Measure the seeds and draw them in one set of pictures; without `measure`, draw all measured seeds."""
    from studies.paper.figures import draw_fig3, draw_fig4

    require_matplotlib()
    chosen = seeds if measure else sorted(measurements(folder, which).keys) or seeds
    measured = [measure(seed) if measure else _read_measured(folder, which, seed) for seed in chosen]
    for seed, one in zip(chosen, measured, strict=True):
        _require_whole(one, which, seed)
    if len({(one["rounds"], one["steps_per_round"]) for one in measured}) > 1:
        raise UsageError(f"the seeds of {which} have other numbers of rounds; measure them again with one --rounds")
    stem = folder / which
    pictures = [str(path) for path in (draw_fig3(measured, stem) if which == "fig3" else [draw_fig4(measured, stem)])]
    typer.echo(json.dumps({"pictures": pictures}) if as_json else "\n".join(pictures))


def _measure(which: str, folder: Path, rounds: int | None, origin: ResultOrigin, seed: int) -> dict[str, Any]:
    """Measure a figure with a seed, save the values below `folder` and return them."""
    from studies.paper.inspection import run_fig3, run_fig4

    run = {"fig3": run_fig3, "fig4": run_fig4}[which]
    named = {"command": origin.command, "commit": origin.commit, "processor": origin.processor}
    with interruptible():
        return run(folder, seed, rounds, say, named)


def _read_measured(folder: Path, which: str, seed: int) -> dict[str, Any]:
    table = measurements(folder, which)
    measured = table.get(seed)
    if measured is None:
        raise UsageError(f"{table.path} has no seed {seed} yet; leave out --summary to measure it")
    return measured


def _require_whole(measured: dict[str, Any], which: str, seed: int) -> None:
    """Raise UsageError unless all parts of a figure are measured."""
    parts, there = {
        "fig3": (("ind", "fl", "mtfl", "layers"), measured),
        "fig4": (("none", "stats", "affine", "all"), measured.get("policies", {})),
    }[which]
    if missing := [part for part in parts if part not in there]:
        raise UsageError(
            f"{which}, seed {seed}: {missing[0]!r} is not measured yet; the same command without --summary goes on"
        )


if __name__ == "__main__":
    run_app(app, NAME)
