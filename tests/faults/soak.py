"""Soak test: hundreds of short rounds while the broker is killed every minute; checks that no resource grows.

    python -m tests.faults.soak --rounds 500 --out results/robustness/soak.json

The bounds limit the growth per 100 rounds after a warm-up (tests.faults.slopes). Growth clearly above a bound is reported, and
the exit code is 1. Memory may grow by the data kept of each round, and by short-term effects of allocators.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.support.report import machine
from fedpatch.shared.app.files import write_atomic
from tests.faults.gauges import (
    files,
    open_files,
    registry_kib_beyond_the_account,
    resident_kib,
    retained_topics,
    rows_beyond_the_account,
    training_processes,
)
from tests.faults.slopes import BLOCKS, SIGNIFICANT, WARM_UP, Slope, slope
from tests.support.brokers import Mosquitto
from tests.system.commands import Command
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

SAMPLE_EVERY_S = 0.5
COUNT_RETAINED_EVERY = 2
"""Samples; each count needs a connection of its own."""
TERMS = {"rejoin_s": 10, "grace_s": 5, "recruit_deadline_s": 5, "deadline_s": 30, "quorum": 0.5, "wait_s": 60}

BOUNDS: Mapping[str, float] = {
    "coordinator_resident_kib": 1024,
    "agent_resident_kib": 256,
    "training_resident_kib": 512,
    "coordinator_open_files": 0.5,
    "agent_open_files": 0.2,
    "training_open_files": 0.2,
    "coordinator_files": 0.5,
    "agent_files": 0.2,
    "registry_rows": 0.5,
    "registry_kib": 40,
    "retained_topics": 0.5,
}
"""Per 100 rounds; values of agents are means over them. The registry's KiB include unused page space of the records."""

_INTERRUPTED = 130
_ROUND = re.compile(r"^round (\d+)/", re.MULTILINE)


@dataclass
class Soak:
    """The measurements; each of `samples` has the round, the seconds since the beginning and the gauges' values."""

    agents: int
    machine: dict[str, Any] = field(default_factory=machine)
    broker_kills: int = 0
    rounds: int = 0
    aggregated: int = 0
    seconds: float = 0.0
    samples: list[dict[str, float]] = field(default_factory=list)

    def enough(self) -> bool:
        """Return whether each gauge has been read often enough, and over enough rounds, to estimate its slope."""
        read = all(sum(name in one for one in self.samples) >= 2 * BLOCKS for name in BOUNDS)
        return read and self.measured_rounds() >= BLOCKS

    def measured_rounds(self) -> float:
        """Return the number of rounds between the first and the last sample after the warm-up."""
        return (1 - WARM_UP) * (self.samples[-1]["round"] - self.samples[0]["round"])

    def slopes(self) -> dict[str, Slope]:
        found = {}
        for name in BOUNDS:
            kept = [(one["round"], one[name]) for one in self.samples if name in one]
            found[name] = slope([x for x, _ in kept], [y for _, y in kept])
        return found

    def to_dict(self, command: str) -> dict[str, Any]:
        """Return plain values for JSON; a slope has its gauge's unit per 100 rounds."""
        plain = {"command": command, "terms": TERMS, "significant_standard_errors": SIGNIFICANT}
        plain |= asdict(self)
        plain["slopes"] = {
            name: {**asdict(one), "bound": BOUNDS[name], "exceeds": one.exceeds(BOUNDS[name])}
            for name, one in self.slopes().items()
        }
        return plain


def soak(directory: Path, *, agents: int, rounds: int, limit_s: float, kill_every_s: float) -> Soak:
    """Run `rounds` rounds, or fewer if `limit_s` have passed and there are enough samples of enough rounds.

    Raises RuntimeError if the run fails.
    """
    with Mosquitto(autosave=True) as broker, Fleet(broker.url, directory, forked=False) as fleet:
        for number in range(agents):
            fleet.start(f"pi-{number:02d}", REFERENCE, f"n={20 + number},test=20,seed={number}")
        fleet.wait_ready(patience_s=60.0 + 10.0 * agents)
        given = {**TERMS, "task": REFERENCE, "devices": agents, "rounds": rounds, "max_failed_rounds": rounds}
        with fleet.coordinator(directory / "coordinator", **given) as command:
            measured = _watch(command, broker, fleet, directory, kill_every_s, limit_s)
            done = command.interrupt() if command.running else command.done()
    if done.code not in (0, _INTERRUPTED):
        raise RuntimeError(f"the run ended with {done.code}:\n{done.err}")
    outcomes = [one["outcome"] for one in done.document["rounds"]]
    measured.rounds, measured.aggregated = len(outcomes), outcomes.count("aggregated")
    return measured


def _watch(
    command: Command, broker: Mosquitto, fleet: Fleet, directory: Path, kill_every_s: float, limit_s: float
) -> Soak:
    measured = Soak(len(fleet.agents))
    began = time.monotonic()
    kill_at = began + kill_every_s
    while command.running and not (time.monotonic() - began > limit_s and measured.enough()):
        if time.monotonic() >= kill_at:
            broker.restart()
            measured.broker_kills += 1
            kill_at += kill_every_s
        number = max(map(int, _ROUND.findall(command.err)), default=0)
        sample: dict[str, float] = {"round": number, "seconds": round(time.monotonic() - began, 1)}
        # No sample if a process ends or a file is busy meanwhile.
        with contextlib.suppress(OSError, TimeoutError, sqlite3.OperationalError):
            if number:
                sample |= _gauged(command._process.pid, fleet, directory)
                if len(measured.samples) % COUNT_RETAINED_EVERY == 0:
                    sample["retained_topics"] = retained_topics(broker.url, fleet.name)
                measured.samples.append(sample)
        time.sleep(SAMPLE_EVERY_S)
    measured.seconds = round(time.monotonic() - began, 1)
    return measured


def _gauged(coordinator: int, fleet: Fleet, directory: Path) -> dict[str, float]:
    agents = [agent.pid for agent in fleet.agents.values()]
    training = training_processes(agents)
    state_dir = directory / "coordinator"

    def mean(gauge: Callable[[int], float], pids: list[int]) -> float:
        return round(sum(map(gauge, pids)) / len(pids), 2)

    return {
        "coordinator_resident_kib": resident_kib(coordinator),
        "agent_resident_kib": mean(resident_kib, agents),
        "training_resident_kib": mean(resident_kib, training),
        "coordinator_open_files": open_files(coordinator),
        "agent_open_files": mean(open_files, agents),
        "training_open_files": mean(open_files, training),
        "coordinator_files": files([state_dir]),
        "agent_files": files(agent.state_dir for agent in fleet.agents.values()) / len(agents),
        "registry_rows": rows_beyond_the_account(state_dir),
        "registry_kib": registry_kib_beyond_the_account(state_dir),
    }


def lines(measured: Soak) -> Iterator[str]:
    yield f"{measured.rounds} rounds, {measured.aggregated} aggregated, in {measured.seconds:g} s"
    yield f"{measured.agents} agents; the broker was killed {measured.broker_kills} times"
    for name, one in measured.slopes().items():
        verdict = "GROWS" if one.exceeds(BOUNDS[name]) else "ok"
        growth = f"{one.per_100_rounds:+.3g} ± {SIGNIFICANT * one.standard_error:.2g} per 100 rounds"
        yield f"{name:26} {growth:38} bound {BOUNDS[name]:<6g} last {one.last:<9.6g} {verdict}"


def main(
    agents: Annotated[int, typer.Option(min=1)] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play.")] = 500,
    minutes: Annotated[float, typer.Option(help="Minutes after which it ends in any case.")] = 60.0,
    kill_every_s: Annotated[float, typer.Option(help="Seconds between two kills of the broker.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Where the samples and the slopes go.")] = Path("soak.json"),
) -> None:
    """Play rounds for a long time, and report growth."""
    with tempfile.TemporaryDirectory(prefix="fedpatch-soak-") as directory:
        measured = soak(Path(directory), agents=agents, rounds=rounds, limit_s=60 * minutes, kill_every_s=kill_every_s)
    try:
        measured.slopes()
    except ValueError as error:
        typer.echo(
            f"{measured.rounds} rounds do not show growth: {error}; play more: make soak SOAK_ROUNDS=200", err=True
        )
        raise typer.Exit(2) from None
    command = " ".join(["python -m tests.faults.soak", *sys.argv[1:]])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, (json.dumps(measured.to_dict(command), indent=1) + os.linesep).encode(), mode=0o644)
    for line in lines(measured):
        typer.echo(line)
    raise typer.Exit(any(one.exceeds(BOUNDS[name]) for name, one in measured.slopes().items()))


if __name__ == "__main__":
    typer.run(main)
