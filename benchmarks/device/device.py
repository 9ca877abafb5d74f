"""Cost of fedpatch on the device: training steps, the agent's start, an idle agent: `python -m benchmarks.device.device`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.device.idle_agent import start_up, torch_alone
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.support.contests import Contest, Here, Measured, play_in_turn, ratios, spread
from benchmarks.support.documents import (
    Document,
    Out,
    Show,
    Toy,
    deliver,
    machine_line,
    read_document,
    table,
    within,
)
from benchmarks.support.report import begun
from benchmarks.training.training_steps import BareLoop, OwnTrainer, Steps
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.tasks.task import data_root, find_task

BENCHMARK = "device"
DATA = "shard:0/10"
STEPS = {"mnist": 200, "cifar10": 20}
TOY_STEPS = {"digits": 5}
STARTS = 3

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app, BENCHMARK, example="FEDPATCH_DATA=... python -m benchmarks.device.device --out results/benchmarks/device.json"
)
def device(
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each contestant.")] = 15,
    idle_s: Annotated[float, typer.Option(min=0.1, metavar="S", help="How long to watch an idle agent.")] = 60.0,
    starts: Annotated[
        int, typer.Option(min=0, metavar="N", help="Starts of an agent; 0: training steps only.")
    ] = STARTS,
    toy: Toy = False,
    show: Show = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time training steps beside a bare PyTorch loop, the start of an agent, and what an idle agent uses."""
    if show is not None:
        document = read_document(show, BENCHMARK)
    else:
        with interruptible():
            document = _measure(TOY_STEPS, 1, 0.2, 1) if toy else _measure(STEPS, turns, idle_s, starts)
    deliver(document, tables, out, as_json)


def _measure(steps: dict[str, int], turns: int, idle_s: float, starts: int) -> Document:
    document: Document = begun(BENCHMARK, turns)
    document["training"] = [
        _train(task, strategy, count, turns) for task, count in steps.items() for strategy in ("fedavg", "fedavg-adam")
    ]
    if not starts:
        return document
    task = next(iter(steps))
    found, alone = [], []
    with tempfile.TemporaryDirectory(prefix="fedpatch-device-") as folder, shipped_broker(Path(folder)) as broker:
        for number in range(starts):
            log.info("start %d of %d", number + 1, starts)
            alone.append(torch_alone())
            watched_s = idle_s if number == starts - 1 else 0.0
            found.append(start_up(broker, Path(folder) / f"agent-{number}", task, DATA, watched_s))
    document["start"] = {
        "task": task,
        "connected_s": spread(one["connected_s"] for one in found),
        "ready_s": spread(one["ready_s"] for one in found),
        "torch_alone_s": spread(alone),
        "ready_to_torch_alone": ratios([one["ready_s"] for one in found], alone),
    }
    document["idle"] = {"seconds": idle_s, **{name: found[-1][name] for name in ("warm_share", "idle_share")}}
    return document


def _train(task_ref: str, strategy: str, steps: int, turns: int) -> dict[str, Any]:
    task = find_task(task_ref)
    work = Steps(task, task.load_data(DATA, data_root()), strategy, steps)
    contests = [
        Contest("agent", "the agent's trainer", Here(OwnTrainer(work).play), share=steps),
        Contest("bare", "bare PyTorch loop", Here(BareLoop(work).play), share=steps),
    ]
    measured = play_in_turn(contests, turns, say=log.info)
    return {
        "task": task_ref,
        "strategy": strategy,
        "steps": steps,
        "batch_size": work.plan.batch_size,
        "contests": [_summary(one, measured) for one in measured],
    }


def _summary(one: Measured, measured: Sequence[Measured]) -> dict[str, Any]:
    bare = measured[-1]
    return {
        "name": one.contest.name,
        "what": one.contest.what,
        "step_s": spread(one.wall_s) | {"all": one.wall_s},
        "step_cpu_s": spread(one.cpu_s) | {"all": one.cpu_s},
        "ratio_to_bare": ratios(one.wall_s, bare.wall_s),
        "cpu_ratio_to_bare": ratios(one.cpu_s, bare.cpu_s),
        "train_losses": one.losses,
    }


def tables(document: Document) -> Iterator[str]:
    """Yield the tables of steps, start and idling."""
    yield machine_line(document)
    yield ""
    yield from table(
        ("model", "LocalUpdate", "a step by", "ms", "to the bare loop", "CPU to the bare loop"), _steps(document)
    )
    if "start" not in document:
        return
    start, idle = document["start"], document["idle"]
    yield ""
    yield from table(
        ("an agent's start", "seconds"),
        (
            ("connected to the broker", within(start["connected_s"])),
            (f"ready to train {start['task']}", within(start["ready_s"])),
            ("a Python that imports torch and ends", within(start["torch_alone_s"])),
            ("ready, to that", within(start["ready_to_torch_alone"])),
        ),
    )
    yield ""
    yield from table(
        (f"idle for {idle['seconds']:g} s", "of a processor"),
        (
            ("agent alone, its training process ended", f"{idle['idle_share']:.3%}"),
            ("agent and a training process that waits", f"{idle['warm_share']:.3%}"),
        ),
    )


def _steps(document: Document) -> Iterator[tuple[str, ...]]:
    for one in document["training"]:
        for contest in one["contests"]:
            yield (
                one["task"],
                f"{one['strategy']}, batch {one['batch_size']}",
                contest["what"],
                f"{contest['step_s']['median'] * 1e3:.3f}",
                within(contest["ratio_to_bare"], 3),
                within(contest["cpu_ratio_to_bare"], 3),
            )


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.device.device")
