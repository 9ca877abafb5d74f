"""Runs schedules from a terminal: `python -m tests.faults.simulated --seed 17` prints the log with virtual times."""

from __future__ import annotations

import logging
import time
from typing import Annotated

import typer

from tests.faults.simulated.schedules import DRAWS, Failed, play
from tests.faults.simulated.world import World


def main(
    seed: Annotated[int, typer.Option(help="Of the schedule, or of the first one.")] = 0,
    kind: Annotated[str, typer.Option(help=f"Of the schedule: {', '.join(DRAWS)}.")] = "plain",
    count: Annotated[int, typer.Option(help="How many; the log is printed for a single one only.")] = 1,
) -> None:
    """Exit code 1 where a schedule fails."""
    logging.disable()
    failed = 0
    for number in range(seed, seed + count):
        worlds: list[World] = []
        began = time.perf_counter()
        try:
            play(DRAWS[kind](number), worlds.append)
            words = "holds"
        except Failed as error:
            failed += 1
            words = str(error).splitlines()[0]
        if count == 1:
            typer.echo("\n".join(worlds[0].log))
        typer.echo(f"seed {number}: {words} ({time.perf_counter() - began:.2f} s)")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
