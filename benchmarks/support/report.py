"""Results of measurements: plain values for JSON, tables for people."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
import typer
from rich.table import Table

from benchmarks.device.growth import Size
from benchmarks.support.contests import Measured, ratios, spread
from benchmarks.support.work import Work
from fedpatch.coordinator.cli.tables import print_table
from fedpatch.shared import __version__
from fedpatch.shared.app.formatting import size
from fedpatch.shared.app.provenance import processor_name, source_commit

REFERENCE = "fedpatch"
EARLIER = {
    "what": "earlier measurement, on such a machine: the authors' own code and a plain loop, one thread",
    "authors_code_s": 2.5,
    "plain_loop_s": 2.1,
}


@dataclass(frozen=True)
class Goal:
    """A goal for a ratio of wall times: `these` over `those` is at least, or at most, `bound`."""

    words: str
    these: str
    those: str
    bound: float
    at_most: bool = False


GOALS = (
    Goal("twice as fast as the plain loop", "plain", "fedpatch", 2.0),
    Goal("twice as fast as the plain loop, two threads against two processes", "plain-2-threads", "fedpatch-2", 2.0),
    Goal("twice as fast as the plain loop, two processes each", "plain-2", "fedpatch-2", 2.0),
    Goal("within 1.2 times the matrix products alone", "fedpatch", "products", 1.2, at_most=True),
    Goal("faster than pfl", "pfl", "fedpatch", 1.0),
    Goal("faster than pfl, two processes each", "pfl-2", "fedpatch-2", 1.0),
    Goal("faster than Flower, one actor", "flower", "fedpatch", 1.0),
    Goal("faster than Flower, two processes each", "flower-2", "fedpatch-2", 1.0),
)


@dataclass
class Report:
    """All measurements; each contest has `rounds` rounds."""

    command: str
    rounds: int
    machine: Mapping[str, Any] = field(default_factory=lambda: machine())
    works: list[tuple[Work, list[Measured]]] = field(default_factory=list)
    growth: list[Size] = field(default_factory=list)
    peers: dict[str, str] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "benchmark": "simulation",
            "command": self.command,
            "rounds": self.rounds,
            "machine": dict(self.machine),
            "peers": self.peers,
            "works": [_work(work, measured) for work, measured in self.works],
            "goals": goals(self.works[0][1]) if self.works else [],
            "growth": [asdict(one) | {"s_per_client_step": one.s_per_client_step} for one in self.growth],
            "not_measured": self.not_measured,
            "earlier": EARLIER,
        }

    def print(self) -> None:
        """Print the report to stdout."""
        typer.echo(", ".join(f"{name} {value}" for name, value in self.machine.items()))
        for work, measured in self.works:
            study = work.study
            typer.echo(
                f"\n{study.task}, {study.clients} clients, all in each round: {work.client_steps} steps of batch "
                f"{study.batch_size}; {study.strategy}, private {study.private}"
            )
            print_table(_contests_table(measured))
        for name, why in self.not_measured.items():
            typer.echo(f"{name}: not measured: {why}")
        if self.works:
            typer.echo("")
            print_table(_goals_table(goals(self.works[0][1])))
            ratio = EARLIER["authors_code_s"] / EARLIER["plain_loop_s"]  # type: ignore[operator]
            typer.echo(f"{EARLIER['what']}: 2.5 s and 2.1 s, a ratio of {ratio:.2f}")
        if self.growth:
            typer.echo("\nsynthetic task, from few clients to many")
            print_table(_growth_table(self.growth))


def command_line(module: str) -> str:
    """Return the command of this process; `module` is its module if Python was not started with -m."""
    spec = sys.modules["__main__"].__spec__
    started = module if spec is None else spec.name.removesuffix(".__main__")
    return shlex.join(["python", "-m", started, *sys.argv[1:]])


def begun(benchmark: str, turns: int) -> dict[str, Any]:
    """Return a document before any measurement."""
    return {
        "benchmark": benchmark,
        "command": command_line(f"benchmarks.{benchmark}"),
        "turns": turns,
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Return the processor, the versions and the load of other programs, on which the seconds depend."""
    return {
        "cpu": processor_name(),
        "commit": source_commit(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fedpatch": __version__,
        "begun": time.strftime("%Y-%m-%d %H:%M"),
    }


def goals(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return each goal whose two contests were measured, with its result."""
    known = {one.contest.name: one for one in measured}
    found = []
    for goal in GOALS:
        if goal.these in known and goal.those in known:
            these, those = known[goal.these], known[goal.those]
            wall = ratios(these.wall_s, those.wall_s)
            met = wall["median"] <= goal.bound if goal.at_most else wall["median"] >= goal.bound
            found.append(asdict(goal) | {"wall": wall, "cpu": ratios(these.cpu_s, those.cpu_s), "met": met})
    return found


def _work(work: Work, measured: Sequence[Measured]) -> dict[str, Any]:
    return {
        "study": work.study.to_dict(),
        "client_steps": work.client_steps,
        "contests": [_contest(one, measured) for one in measured],
    }


def _contest(one: Measured, measured: Sequence[Measured]) -> dict[str, Any]:
    contest, reference = one.contest, _reference(measured)
    return {
        "name": contest.name,
        "what": contest.what,
        "threads": contest.threads,
        "processes": contest.processes,
        "share_played": contest.share,
        "wall_s": spread(one.wall_s) | {"all": one.wall_s},
        "cpu_s": spread(one.cpu_s) | {"all": one.cpu_s},
        "ratio_to_fedpatch": {
            "wall": ratios(one.wall_s, reference.wall_s),
            "cpu": ratios(one.cpu_s, reference.cpu_s),
        },
        "train_losses": one.losses,
    }


def _reference(measured: Sequence[Measured]) -> Measured:
    return next(one for one in measured if one.contest.name == REFERENCE)


def _contests_table(measured: Sequence[Measured]) -> Table:
    table = _table("a round of training", "cores", "wall", "least", "most", "CPU", "wall ratio", "CPU ratio")
    reference = _reference(measured)
    for one in measured:
        wall, used = spread(one.wall_s), spread(one.cpu_s)
        table.add_row(
            one.contest.what,
            str(one.contest.cores),
            *(f"{wall[name]:.3f} s" for name in ("median", "min", "max")),
            f"{used['median']:.3f} s",
            f"{ratios(one.wall_s, reference.wall_s)['median']:.2f}",
            f"{ratios(one.cpu_s, reference.cpu_s)['median']:.2f}",
        )
    return table


def _goals_table(found: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("goal for fedpatch", "bound", "wall ratio", "least", "most", "CPU ratio", "met")
    for one in found:
        table.add_row(
            one["words"],
            f"{'<=' if one['at_most'] else '>='} {one['bound']:.1f}",
            *(f"{one['wall'][name]:.2f}" for name in ("median", "min", "max")),
            f"{one['cpu']['median']:.2f}",
            "yes" if one["met"] else "no",
        )
    return table


def _growth_table(sizes: Sequence[Size]) -> Table:
    table = _table(
        "clients", "in a round", "round", "client-step", "peak", "more per client", "at the end", "data and patch"
    )
    fewest = min(sizes, key=lambda one: one.clients)
    for one in sizes:
        more = one.clients - fewest.clients
        table.add_row(
            f"{one.clients:,}",
            f"{one.cohort:,}",
            f"{one.round_s:.3f} s",
            f"{one.s_per_client_step * 1e6:.0f} us",
            size(one.peak_bytes),
            size((one.peak_bytes - fewest.peak_bytes) / more) if more else "-",
            size(max(0.0, (one.resident_bytes - fewest.resident_bytes) / more)) if more else "-",
            size(one.own_bytes),
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    return table
