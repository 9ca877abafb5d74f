"""Time of a round without training, masked and plain: `python -m benchmarks.masking.round_time`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.network.fleets import FedpatchFleet
from benchmarks.support.contests import Contest, Measured, play_in_turn, ratios, spread
from benchmarks.support.documents import Document, Out, Show, Toy, deliver, machine_line, read_document, table, within
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible

BENCHMARK = "masked-round-time"
ROUNDS = 10
"""Rounds of a turn, without a pause."""
GOAL = 1.5
PLAIN = "plain, delta-int8"
VARIANTS: dict[str, dict[str, str | int]] = {
    "masked": {"secure": "groups", "threshold": "half"},
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app, "round_time", example="python -m benchmarks.masking.round_time --out results/benchmarks/masked-round-time.json"
)
def round_time(
    devices: Annotated[int, typer.Option(min=8, metavar="N", help="Number of devices.")] = 10,
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each contestant.")] = 5,
    toy: Toy = False,
    show: Show = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time rounds of devices that train nothing, with the 2NN: masked groups beside plain updates of the default encoding.

    Each contestant has a broker and a coordinator of its own, and devices that are the agent's own job without a disk.
    """
    if show is not None:
        deliver(read_document(show, BENCHMARK), tables, None, as_json)
        return
    document = begun(BENCHMARK, turns) | {"devices": devices, "goal": GOAL}
    task = "benchmarks.support.synthetic_task:TASK" if toy else "mnist"
    with interruptible(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-masked-rounds-")))
        contests = []
        for contest in _contests(task, devices, 1 if toy else ROUNDS, folder):
            stack.callback(contest.contestant.close)
            contests.append(contest)
        measured = play_in_turn(contests, 1 if toy else turns)
        document["contests"] = [_summary(one, measured) for one in measured]
    deliver(document, tables, out, as_json)


def _contests(task: str, devices: int, rounds: int, folder: Path) -> Iterator[Contest]:
    fleet = FedpatchFleet(task, devices, "delta-int8", rounds, folder / "plain")
    yield Contest(PLAIN, PLAIN, fleet, share=rounds)
    for number, (name, changes) in enumerate(VARIANTS.items()):
        fleet = FedpatchFleet(task, devices, "masked-u8", rounds, folder / f"masked-{number}", **changes)
        yield Contest(name, name, fleet, share=rounds)


def _summary(one: Measured, measured: Sequence[Measured]) -> dict[str, Any]:
    plain = measured[0]
    fleet = one.contest.contestant
    assert isinstance(fleet, FedpatchFleet)
    answer = fleet.answers[-1]
    return {
        "name": one.contest.name,
        "outcome": answer["outcome"],
        "reported": answer["reported"],
        "bytes_up": answer["bytes_up"],
        "bytes_down": answer["bytes_down"],
        "wall_s": spread(one.wall_s) | {"all": one.wall_s},
        "coordinator_cpu_s": spread(one.cpu_s) | {"all": one.cpu_s},
        "wall_ratio_to_plain": ratios(one.wall_s, plain.wall_s),
        "cpu_ratio_to_plain": ratios(one.cpu_s, plain.cpu_s),
    }


def tables(document: Document) -> Iterator[str]:
    """Yield the lines of the table."""
    yield machine_line(document)
    yield ""
    heads = ("round of devices without training", "time", "over plain", "coordinator's processor", "over plain")
    yield from table(
        heads,
        (
            [
                f"{one['name']}, {document['devices']} devices",
                f"{one['wall_s']['median'] * 1e3:.0f} ms",
                within(one["wall_ratio_to_plain"]),
                f"{one['coordinator_cpu_s']['median'] * 1e3:.0f} ms",
                within(one["cpu_ratio_to_plain"]),
            ]
            for one in document["contests"]
        ),
    )


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.masking.round_time")
