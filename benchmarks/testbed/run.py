"""The paper's testbed (section 4.5, Table 4): `python -m benchmarks.testbed.run`."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.support.report import command_line, machine
from benchmarks.testbed.cells import CPUS, DATASETS, Cell, find_cells
from benchmarks.testbed.play import Federation, hosts_for, play_alone
from benchmarks.testbed.table import TestbedRecords, documents_of, markdown, records_in
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, "testbed", example="FEDPATCH_DATA=... python -m benchmarks.testbed.run --seeds 5 --markdown")
def testbed(
    cells: Annotated[str, typer.Option(metavar="NAME,..", help="Cells to play, as mnist-mtfl-on; none: all.")] = "",
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Seeds of the data, the initial model and the batches: 0 to N-1.")
    ] = 1,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of each cell.")] = 10,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File with a line of JSON for each cell and seed, which are kept.")
    ] = Path("results/testbed.jsonl"),
    again: Annotated[bool, typer.Option("--again", help="Play cells too that are there already.")] = False,
    toy: Annotated[bool, typer.Option("--toy", help="A smoke test: task digits, two rounds.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Play ten rounds of ten devices with slow processors and links, and print where the time goes, beside the paper's table.

    Needs root, for network namespaces and control groups; Linux only. A cell that is there already is not played again.
    """
    datasets = ("digits",) if toy else ("mnist", "cifar10")
    wanted = find_cells(cells, datasets)
    rounds, kept = 2 if toy else rounds, records_in(out)
    with interruptible():
        for seed in range(seeds):
            missing = wanted if again else [cell for cell in wanted if (cell.name, seed) not in kept.keys]
            for dataset, group in groupby(missing, lambda cell: cell.dataset):
                _play(dataset, list(group), seed, rounds, kept)
    found = {cell: [one for one in documents_of(kept, cell) if one["seed"] < seeds] for cell in wanted}
    if as_json:
        by_name = {cell.name: documents for cell, documents in found.items()}
        typer.echo(json.dumps(by_name, allow_nan=False))
    else:
        for line in markdown(found, plain=not as_markdown):
            typer.echo(line)


def _play(dataset: str, cells: list[Cell], seed: int, rounds: int, kept: TestbedRecords) -> None:
    federated = [cell for cell in cells if cell.scheme != "independent"]
    with tempfile.TemporaryDirectory(prefix="fedpatch-testbed-") as folder, hosts_for(DATASETS[dataset]) as hosts:
        federation = Federation(hosts, DATASETS[dataset], Path(folder), seed)
        with federation.at_work() if federated else nullcontext():
            for cell in federated:
                _keep(kept, cell, seed, partial(federation.play, cell, rounds))
        for cell in cells:
            if cell.scheme == "independent":
                _keep(kept, cell, seed, partial(play_alone, hosts, DATASETS[dataset], rounds, seed))


def _keep(kept: TestbedRecords, cell: Cell, seed: int, play: Callable[[], dict[str, Any]]) -> None:
    typer.echo(f"{cell.name}, seed {seed} ...", err=True)
    began, terms = time.monotonic(), _terms(cell, seed)
    document = play() | {"cell": cell.name, "seed": seed, "seconds": time.monotonic() - began, **terms}
    kept.put(document)


def _terms(cell: Cell, seed: int) -> dict[str, Any]:
    dataset = DATASETS[cell.dataset]
    terms = {"cpus": CPUS, "rate_bit_s": dataset.rate_bit_s, "data": dataset.data(0, seed)}
    return {**terms, "command": command_line("benchmarks.testbed.run"), "machine": machine()}


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.testbed.run")
