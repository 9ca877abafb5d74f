"""Aggregation rules under attacks, on any task: `python -m studies.robustness`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedpatch.shared.app.command import AsJson, command, run_app, say
from fedpatch.shared.app.signals import EXIT_INTERRUPTED, stoppable
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
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
from studies.robustness.table import (
    RobustnessFile,
    check_cells,
    markdown_tables,
    plan_table,
    play_cell,
    summarise,
)

Strategy = Annotated[str, typer.Option(metavar="NAME", help="Strategy: fedavg, fedadam or fedavg-adam.")]
Private = Annotated[str, typer.Option(metavar="POLICY", help="Patch, as of fedpatch run.")]
Rounds = Annotated[int, typer.Option(metavar="N", help="Rounds of each simulation.")]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0 on.")]
LearningRate = Annotated[float | None, typer.Option(metavar="RATE", help="Learning rate of the clients.")]
Rules = Annotated[
    str,
    typer.Option(metavar="RULE,...", help="Rules of aggregation, with a norm bound as RULE/BOUND."),
]
Attacks = Annotated[
    str,
    typer.Option(metavar="KIND[:X],...", help="Attacks of fedpatch simulate, or none."),
]
Shares = Annotated[str, typer.Option("--bad", metavar="SHARE,...", help="Shares of bad clients.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="File of all figures.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_RULES = "mean,mean/auto:2,centred/auto:2,trimmed:0.2/auto:2"
_ATTACKS = "sign:4,labels,alie:1.5,ipm:2,noise:20,backdoor,copy"


@command(app, "robustness", example="python -m studies.robustness --task digits --seeds 5 --out digits.json")
def robustness(  # noqa: PLR0913  (a command has as many arguments as it has options)
    task: TaskName = "digits",
    clients: Clients = 30,
    rounds: Rounds = 20,
    seeds: Seeds = 1,
    rules: Rules = _RULES,
    attacks: Attacks = _ATTACKS,
    bad: Shares = "0.2",
    strategy: Strategy = "fedavg",
    private: Private = "affine",
    participation: Participation = 1.0,
    learning_rate: LearningRate = None,
    epochs: Epochs = 1,
    data: Data = "",
    data_root: DataRoot = None,
    out: Out = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Compare aggregation rules under attacks by a share of the clients.

    It prints the user accuracy of the honest clients (mean, 10th percentile) without attack and under each one, and
    the success of a backdoor. With --out a repeated command computes only what is missing.
    """
    keys = plan_table(_split(rules), _split(attacks), [_share(text) for text in _split(bad)], seeds)
    found = find_task(task)
    study = make_study(
        task=found,
        task_ref=task,
        clients=clients,
        strategy=strategy,
        private=private,
        data=data,
        participation=participation,
        rounds=rounds,
        learning_rate=learning_rate,
        epochs=epochs,
    )
    check_cells(study, found, keys)
    table, processes = RobustnessFile(out, study), worker_count(workers)
    root = None if data_root is None else data_root.expanduser()
    missing = [key for key in keys if key not in table.cells]
    with stoppable(STOPPING) as stopped:
        for number, key in enumerate(missing):
            say(f"{number + 1} of {len(missing)}: {key[0]}, attack {key[1]}, bad {key[2]:g}, seed {key[3]}")
            cell = play_cell(study, key, simulate, workers=processes, root=root, stopped=stopped)
            if cell is None:
                say("interrupted: " + ("--out FILE keeps the figures" if out is None else "the same command goes on"))
                raise typer.Exit(EXIT_INTERRUPTED)
            table.add(cell)
    rows = summarise(table.cells[key] for key in keys)
    if as_json:
        typer.echo(json.dumps(table.to_dict() | {"rows": [asdict(row) for row in rows]}))
    else:
        typer.echo("\n".join(markdown_tables(rows)))


def _split(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError("--rules, --attacks and --bad need at least one value each")
    return parts


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--bad: {text!r} is not a number") from error


if __name__ == "__main__":
    run_app(app, "python -m studies.robustness")
