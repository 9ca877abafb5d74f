"""The command `fedpatch simulate compare`: methods beside learning alone, on tasks and seeds; recommends one for each task."""

from __future__ import annotations

import json
import math
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpatch.shared.app.command import AsJson, say
from fedpatch.shared.app.signals import EXIT_INTERRUPTED, stoppable
from fedpatch.shared.errors import FedpatchError, UsageError
from fedpatch.simulator.spec.compute import (
    STOPPING,
    Clients,
    Data,
    DataRoot,
    Epochs,
    Participation,
    Workers,
    worker_count,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fedpatch.simulator.comparison.cells import TaskComparison
    from fedpatch.simulator.comparison.methods import Method
    from fedpatch.simulator.comparison.recommend import Arm
    from fedpatch.simulator.comparison.tables import TaskTable

UNFINISHED = ".unfinished"

TaskNames = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="NAME", help="Task to train (repeatable); default: digits."),
]
Methods = Annotated[
    str,
    typer.Option(
        metavar="NAME[:NUMBER],...",
        help="none, stats, affine, all, fedavg, mtfl, fedbn, fedper, fedrep:EPOCHS, fedbabu:EPOCHS, ditto:LAMBDA, "
        "pfedme:LAMBDA, fedprox:MU, or published: eight of them.",
    ),
]
Rounds = Annotated[int, typer.Option(metavar="N", help="Rounds of each simulation.")]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0 on.")]
Strategy = Annotated[str, typer.Option(metavar="NAME", help="Strategy, by name (fedpatch strategies).")]
LearningRates = Annotated[
    str,
    typer.Option(
        "--learning-rate",
        metavar="RATE,...",
        help="Learning rate of the clients; of several, each method takes the best on another seed.",
    ),
]
TargetUa = Annotated[
    float | None,
    typer.Option(metavar="UA", help="User accuracy to which rounds are counted; default: learning alone's."),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of figures and tables."),
]


def compare(  # noqa: PLR0913  (a command has as many arguments as it has options)
    task: TaskNames = None,
    methods: Methods = "none,stats,affine,all",
    clients: Clients = 10,
    rounds: Rounds = 30,
    seeds: Seeds = 1,
    strategy: Strategy = "fedavg-adam",
    participation: Participation = 1.0,
    learning_rate: LearningRates = "",
    epochs: Epochs = 1,
    target_ua: TargetUa = None,
    data: Data = "",
    data_root: DataRoot = None,
    workers: Workers = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Simulate methods and learning alone on the same split; recommend one for each task.

    A method that does not fit the model is left out. With --out a repeated command computes only what is missing; the
    folder gets TASK.json with each client's figures, comparison.md and comparison.svg.
    """
    from fedpatch.coordinator.find_strategy import find_strategy
    from fedpatch.shared.tasks.task import find_task
    from fedpatch.simulator.comparison.cells import ComparisonInterrupted, TaskComparison
    from fedpatch.simulator.comparison.methods import parse_methods
    from fedpatch.simulator.experiment.plots import require_matplotlib

    find_strategy(strategy)
    chosen, rates = parse_methods(methods), _rates(learning_rate)
    if out is not None:
        require_matplotlib()
    terms = {
        "clients": clients,
        "data": data,
        "participation": participation,
        "rounds": rounds,
        "epochs": epochs,
        "target_ua": None,
    }
    tasks = [
        TaskComparison(ref, find_task(ref), terms, strategy, seeds, rates) for ref in dict.fromkeys(task or ("digits",))
    ]
    for one in tasks:
        if target_ua is not None and not one.task.metric_terms.allows(target_ua):
            raise UsageError(
                f"--target-ua: {target_ua:g} is not {one.task.metric_terms.range_words} (task {one.ref!r})"
            )
    if out is not None:
        _require_tables(tasks, out)
    root = None if data_root is None else data_root.expanduser()
    hooks: dict[str, Any] = {"workers": worker_count(workers), "root": root}
    try:
        with stoppable(STOPPING) as stopped:
            arms = [_compared(one, chosen, out, {**hooks, "stopped": stopped}) for one in tasks]
    except ComparisonInterrupted:
        say(
            "interrupted: "
            + ("nothing is kept, and there is no comparison" if out is None else "the same command goes on")
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _show(tasks, arms, target_ua, out, as_json)


def _require_tables(tasks: Sequence[TaskComparison], out: Path) -> None:
    """Raise UsageError if two tasks have one file in `out`, or a file there has other terms."""
    names = [one.task.name for one in tasks]
    for one in tasks:
        if names.count(one.task.name) > 1:
            raise UsageError(
                f"--task {one.ref}: another task has the name {one.task.name!r} too, and so the same file in {out}; "
                "compare them one by one, each with its own --out"
            )
        one.file(out, "")


def _rates(text: str) -> list[float]:
    """Return the learning rates of the option, smallest first."""
    rates = set()
    for part in filter(None, (one.strip() for one in text.split(","))):
        try:
            rate = float(part)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            raise UsageError(f"--learning-rate: {part!r} is not a number above 0")
        rates.add(rate)
    return sorted(rates)


def _compared(
    terms: TaskComparison, methods: Sequence[Method], out: Path | None, hooks: Mapping[str, Any]
) -> list[Arm]:
    """Simulate the missing cells; return an arm for each method that fits."""
    from fedpatch.simulator.comparison.cells import CellPlayer, arm_of
    from fedpatch.simulator.comparison.methods import ALONE
    from fedpatch.simulator.experiment.simulation import simulate

    with _failures_of(terms.ref):
        table = terms.file(out, shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
        fitting = []
        for method in methods:
            if why := terms.misfit(method):
                say(f"{method}: left out: {why}")
            else:
                fitting.append(method)
        if fitting == [ALONE]:
            raise UsageError(f"task {terms.ref!r}: no method fits; the lines above have the reasons")
        unfinished = None if out is None else out / UNFINISHED / terms.task.name
        player = CellPlayer(terms, table, simulate, unfinished, say, hooks)
        rates = {str(method): player.tune(method) for method in fitting}
        cells = {  # seed by seed: an interrupted comparison has complete seeds
            (str(method), seed): player.play(method, rates[str(method)], seed)
            for seed in range(terms.seeds)
            for method in fitting
        }
    arms = []
    for method in fitting:
        own = [cells[str(method), seed] for seed in range(terms.seeds)]
        broken = next((cell for cell in own if cell.broken), None)
        if broken is None:
            arms.append(arm_of(method, own))
            continue
        if method == ALONE:
            raise FedpatchError(f"task {terms.ref!r}: learning alone diverged with seed {broken.seed}: {broken.broken}")
        say(f"{method}: left out: training diverged with seed {broken.seed}: {broken.broken}")
    return arms


@contextmanager
def _failures_of(task: str) -> Iterator[None]:
    """Turn any exception of the user's model, loss and metric into a message with the task's name."""
    from fedpatch.simulator.comparison.cells import ComparisonInterrupted

    try:
        yield
    except (FedpatchError, OSError, ComparisonInterrupted):
        raise
    except Exception as error:
        raise FedpatchError(
            f"task {task!r} failed in the simulation: {type(error).__name__}: {error}; --debug shows where"
        ) from error


def _show(
    tasks: Sequence[TaskComparison], arms: Sequence[list[Arm]], target_ua: float | None, out: Path | None, as_json: bool
) -> None:
    from fedpatch.simulator.comparison.recommend import recommend, rows
    from fedpatch.simulator.comparison.tables import TaskTable, write

    tables, documents = [], []
    for terms, own in zip(tasks, arms, strict=True):
        metric = terms.task.metric_terms
        choice, sentence = recommend(own, metric)
        table = TaskTable(_title(terms), terms.seeds, metric, rows(own, metric, target_ua), sentence)
        tables.append(table)
        plain = [row.to_dict() for row in table.rows]
        documents.append({"task": terms.ref, "rows": plain, "choice": choice, "recommendation": sentence})
    if out is not None:
        write(out, tables, target_ua)
    if as_json:
        typer.echo(json.dumps(documents[0] if len(documents) == 1 else {"tasks": documents}))
        return
    for table in tables:
        if len(tables) > 1:
            typer.echo(table.title)
        _print(table, target_ua)


def _title(terms: TaskComparison) -> str:
    return f"{terms.task.name}, {terms.terms['clients']} clients, {terms.terms['rounds']} rounds"


def _print(table: TaskTable, target_ua: float | None) -> None:
    from rich.table import Table

    from fedpatch.coordinator.cli.tables import print_table
    from fedpatch.simulator.comparison.tables import cells, headings

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings(table.metric, target_ua)):
        shown.add_column(heading, justify="right" if place else "left", no_wrap=bool(place))
    for row in table.rows:
        shown.add_row(*cells(row, table.seeds))
    print_table(shown)
    typer.echo(table.recommendation)
