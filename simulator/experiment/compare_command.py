"""The command `fedpatch simulate compare`: recommends a patch policy, and shows whether federation pays at all."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

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
    TaskName,
    Workers,
    worker_count,
)
from fedpatch.simulator.spec.study import EVERYTHING, Study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fedpatch.simulator.experiment.compare import Arm, ComparisonRow

Rounds = Annotated[int, typer.Option(metavar="N", help="Rounds of each simulation.")]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0 on.")]
Strategy = Annotated[str, typer.Option(metavar="NAME", help="fedavg, fedadam or fedavg-adam.")]
LearningRate = Annotated[
    float | None, typer.Option(metavar="RATE", help="Learning rate of the clients instead of the task's.")
]


def compare(  # noqa: PLR0913  (a command has as many arguments as it has options)
    task: TaskName = "digits",
    clients: Clients = 10,
    rounds: Rounds = 30,
    seeds: Seeds = 1,
    strategy: Strategy = "fedavg-adam",
    participation: Participation = 1.0,
    learning_rate: LearningRate = None,
    epochs: Epochs = 1,
    data: Data = "",
    data_root: DataRoot = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Simulate the policies none, stats, affine and all and learning alone on the same split; recommend one.

    A policy that does not fit the model is left out.
    """
    from fedpatch.coordinator.strategies import find_strategy
    from fedpatch.shared.tasks.task import find_task
    from fedpatch.simulator.experiment.compare import ALONE, POLICIES, recommend, rows
    from fedpatch.simulator.experiment.options import make_study

    find_strategy(strategy)
    found, root = find_task(task), None if data_root is None else data_root.expanduser()
    arms: list[Arm] = []
    processes = worker_count(workers)
    with stoppable(STOPPING) as stopped:
        for name in (*POLICIES, ALONE):
            with _failures_of(task):
                why = "" if name == ALONE else _why_not(found.build_model, name)
            if why:
                say(f"{name}: left out: {why}")
                continue
            studies = [
                make_study(
                    task=found,
                    task_ref=task,
                    clients=clients,
                    strategy=strategy,
                    private=EVERYTHING if name == ALONE else name,
                    data=data,
                    participation=participation,
                    rounds=rounds,
                    seed=seed,
                    learning_rate=learning_rate,
                    epochs=epochs,
                )
                for seed in range(seeds)
            ]
            say(f"{name}: {rounds} rounds of {clients} clients, {seeds} seed{'s' if seeds > 1 else ''}")
            arm = _arm(name, studies, processes, stopped, root)
            if arm is None:
                say("interrupted: nothing is kept, and there is no comparison")
                raise typer.Exit(EXIT_INTERRUPTED)
            arms.append(arm)
    table = rows(arms, found.metric_terms)
    choice, sentence = recommend(arms, found.metric_terms)
    if as_json:
        plain = [row.to_dict() for row in table]
        typer.echo(json.dumps({"task": task, "rows": plain, "choice": choice, "recommendation": sentence}))
    else:
        _print(table, found.metric_terms.label, sentence)


def _why_not(build_model: Callable[[], object], policy: str) -> str:
    """Why a model cannot have a policy, "" where it can."""
    import torch

    from fedpatch.shared.tasks.torch_model import schema_of
    from fedpatch.shared.tensors.patches import parse_policy

    with torch.random.fork_rng(devices=[]):
        schema = schema_of(build_model())  # type: ignore[arg-type]  # the task may build anything
    try:
        parse_policy(policy).private_names(schema)
    except UsageError as error:
        return str(error)
    return ""


@contextmanager
def _failures_of(task: str) -> Iterator[None]:
    """Turn any exception of the user's model, loss and metric into a message with the task's name."""
    try:
        yield
    except (FedpatchError, OSError):
        raise
    except Exception as error:
        raise FedpatchError(
            f"task {task!r} failed in the simulation: {type(error).__name__}: {error}; --debug shows where"
        ) from error


def _arm(name: str, studies: list[Study], workers: int, stopped: Callable[[], bool], root: Path | None) -> Arm | None:
    """All seeds of one arm; None where it was interrupted."""
    from fedpatch.simulator.experiment.compare import Arm
    from fedpatch.simulator.experiment.simulation import simulate

    accuracies: dict[tuple[int, int], float] = {}
    num_bytes = 0
    for study in studies:
        measured: dict[int, float] = {}
        with _failures_of(study.task):
            outcome = simulate(study, workers=workers, stopped=stopped, root=root, on_end=measured.update)
        if not outcome.complete:
            return None
        accuracies |= {(study.seed, client): value for client, value in measured.items()}
        num_bytes += sum((point.bytes_up or 0) + (point.bytes_down or 0) for point in outcome.points)
    return Arm(name, accuracies, studies[0].rounds, 0 if studies[0].private == EVERYTHING else num_bytes)


def _print(table: list[ComparisonRow], label: str, sentence: str) -> None:
    from rich.table import Table

    from fedpatch.coordinator.cli.tables import print_table
    from fedpatch.shared.app.formatting import accuracy, size

    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("policy")
    for heading in (label, "worst tenth", "better than alone", "gain", "median", "p10", "rounds", "bytes"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in table:
        share = "" if row.gaining is None else f"{row.gaining:.0%}"
        gains = [f"{row.gains[name]:+.3f}" if row.gains else "" for name in ("gain", "gain_median", "gain_p10")]
        figures = accuracy(row.mean), accuracy(row.p10), share, *gains, str(row.rounds), size(row.num_bytes)
        shown.add_row(row.name, *figures)
    print_table(shown)
    typer.echo(sentence)
