"""Rounds and bytes to a target user accuracy, for every encoding: `python -m studies.bytes`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.support.documents import table
from benchmarks.support.json_lines import UNFINISHED, JsonLines
from benchmarks.support.report import command_line
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.formatting import size
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.wire.messages import ENCODINGS
from fedpatch.simulator.experiment.plots import save
from studies.bytes.curves import draw
from studies.bytes.runs import DEFAULT_CELL, Run, RunKey, Setting, play

STRATEGIES = ("fedavg", "fedavg-adam")
# fp16 is fp16+zstd without zstd: the same values, and a constant size.
ENCODED = tuple(one for one in ENCODINGS if one != "fp16")
REFERENCE = "fedavg, private none, fp32"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, "bytes", example="FEDPATCH_DATA=... python -m studies.bytes --out results/bytes")
def count(
    strategies: Annotated[str, typer.Option(metavar="NAME,...", help="Strategies to play.")] = ",".join(STRATEGIES),
    encodings: Annotated[str, typer.Option(metavar="NAME,...", help="Encodings to play.")] = ",".join(ENCODED),
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Seeds, from 0.")] = 1,
    cell: Annotated[
        str, typer.Option(metavar="TASK/W/C", help="Cell of the paper's Table 2, as cifar10/W200/C0.5.")
    ] = DEFAULT_CELL,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes to compute with.")] = 4,
    toy: Annotated[bool, typer.Option("--toy", help="A few clients of task digits, to see that it works.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for runs.jsonl and pictures; a run that is there is kept."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the rounds and the bytes to UA 0.97 on MNIST (200 clients, all in each round), beside FL(FedAvg) in fp32.

    With --out an interrupted run is continued.

    Every update and every step of the global model is packed as it would travel; messages and MQTT's own bytes are left out.
    """
    setting = Setting(workers, command_line("studies.bytes"), toy=toy, cell=cell)
    runs: list[Run] = []
    with interruptible():
        for strategy, private, encoding, seed in _cases(
            strategies.split(","), encodings.split(","), seeds, reference=cell == DEFAULT_CELL
        ):
            runs.append(_kept(setting, strategy, private, encoding, seed, out))
            typer.echo(_line(runs[-1], runs), err=True)
    document = {"command": setting.command, "reference": REFERENCE, "runs": [asdict(run) for run in runs]}
    if out is not None:
        for strategy in strategies.split(","):
            figure = draw([run for run in runs if run.strategy == strategy or run.name == REFERENCE], setting.target_ua)
            save(figure, out / f"{_prefix(setting)}{strategy}")
    if as_json:
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        typer.echo("\n".join(table(_HEADS, (_cells(run, runs) for run in runs))))


def _cases(
    strategies: Sequence[str], encodings: Sequence[str], seeds: int, *, reference: bool
) -> Iterator[tuple[str, str, str, int]]:
    for seed in range(seeds):
        if reference:
            yield "fedavg", "none", "fp32", seed
        for strategy in strategies:
            for encoding in encodings:
                yield strategy, "affine", encoding, seed


def _kept(setting: Setting, strategy: str, private: str, encoding: str, seed: int, out: Path | None) -> Run:
    if out is None:
        return play(setting, strategy, private, encoding, seed)
    known = runs_in(out)
    if (kept := known.get((setting.where, strategy, private, encoding, seed))) is not None:
        return Run(**kept)
    saved = out / UNFINISHED / f"{_prefix(setting)}{strategy}-{private}-{encoding}-seed{seed}"
    run = play(setting, strategy, private, encoding, seed, saved=saved)
    known.put(asdict(run))
    shutil.rmtree(saved, ignore_errors=True)
    return run


def runs_in(folder: Path) -> JsonLines[RunKey]:
    """Return the runs that are kept in a folder."""
    return JsonLines(folder / "runs.jsonl", lambda record: Run(**record).key)


def _prefix(setting: Setting) -> str:
    """Return the prefix of the names of pictures and states, for other cells and the toy size."""
    cell = "" if setting.cell == DEFAULT_CELL else f"{setting.cell.replace('/', '-')}-"
    return f"toy-{cell}" if setting.toy else cell


def _times_fewer(run: Run, runs: Sequence[Run]) -> float | None:
    reference = next((one for one in runs if one.name == REFERENCE and one.seed == run.seed), None)
    if reference is None or not reference.bytes_to_target or not run.bytes_to_target:
        return None
    return reference.bytes_to_target / run.bytes_to_target


def _cells(run: Run, runs: Sequence[Run]) -> list[str]:
    times, steps = _times_fewer(run, runs), run.bytes_down[1:]
    total = run.bytes_to_target
    return [
        run.name,
        str(run.seed),
        "-" if run.rounds_to_target is None else str(run.rounds_to_target),
        size(run.bytes_up_per_update or 0),
        size(run.bytes_down[0] / run.clients),
        size(sum(steps) / max(1, len(steps)) / run.clients),
        "-" if total is None else f"{size(total / run.clients)}",
        "-" if times is None else f"{times:.1f}",
    ]


def _line(run: Run, runs: Sequence[Run]) -> str:
    return ", ".join(f"{head} {cell}" for head, cell in zip(_HEADS, _cells(run, runs), strict=True))


_HEADS = ("run", "seed", "rounds", "an update", "first model", "later ones", "to target, a client", "times fewer")


if __name__ == "__main__":
    run_app(app, "python -m studies.bytes")
