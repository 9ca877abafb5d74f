"""Measures the memory growth of one training process over thousands of rounds, without a network.

    python -m tests.faults.training_memory --rounds 3000 --out results/robustness/training-memory.json

A real training process trains the task `digits` on a tenth of the digits, five steps a round, from a global model that changes
with each round, and keeps its patch and, with `--models`, a personal model. Samples are read from the kernel,
`--every` rounds apart. The fit is that of the soak (tests.faults.slopes).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any

import typer

from benchmarks.support.report import machine
from fedpatch.device_agent.job.training_messages import ModelHeld, ModelMade, Ready, Trained, TrainProgress, WorkerSetup
from fedpatch.device_agent.runtime.training_supervisor import Trainer, TrainerEvent
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.tasks.bundled.digits import TASK
from fedpatch.shared.tensors.arrays import Array
from tests.device_agent.device_rounds import SGD, Scene
from tests.faults.gauges import resident_kib
from tests.faults.slopes import SIGNIFICANT, Slope, slope

DATA = "shard:0/10"
PRIVATE = "affine"
ENCODING = "delta-int8"
BOUND_KIB = 20.0
"""KiB per 100 rounds in the last third: a device that trains every ten minutes grows by 10 MB in a year without a pause."""


def play(folder: Path, rounds: int, every: int, models: bool) -> tuple[list[dict[str, float]], float]:
    """Return samples of (round, resident_kib), and the seconds that `rounds` rounds took. RuntimeError if one fails."""
    scene = Scene(folder, TASK, SGD, PRIVATE)
    model: Mapping[str, Array] = scene.initial()
    samples: list[dict[str, float]] = []
    with _training_process(folder, models) as (trainer, events):
        _outcome(events, Ready)
        began = time.monotonic()
        for number in range(1, rounds + 1):
            trainer.train(scene.command(model, round=number, encoding=ENCODING, hold=True, chunk_bytes=96 * 1024))
            trained = _outcome(events, Trained)
            assert isinstance(trained, Trained)
            if models:
                _outcome(events, ModelMade)
                _publish(folder, number)
            if number % every == 0:
                _, model = scene.update(trained.manifest, model)
                assert trainer.pid is not None
                samples.append({"round": number, "resident_kib": resident_kib(trainer.pid)})
        seconds = time.monotonic() - began
    return samples, seconds


@contextmanager
def _training_process(folder: Path, models: bool) -> Iterator[tuple[Trainer, SimpleQueue[TrainerEvent]]]:
    patches, held = str(folder / "patches"), str(folder / "held")
    models_dir = str(folder / "models") if models else ""
    setup = WorkerSetup("digits", DATA, str(folder), patches, device_id="pi", models_dir=models_dir, held_dir=held)
    events: SimpleQueue[TrainerEvent] = SimpleQueue()
    trainer = Trainer(setup, events.put)
    trainer.start()
    try:
        yield trainer, events
    finally:
        trainer.stop()


def _outcome(events: SimpleQueue[TrainerEvent], kind: type) -> TrainerEvent:
    while isinstance(event := events.get(), TrainProgress | Ready | ModelHeld | ModelMade) and not isinstance(
        event, kind
    ):
        pass
    if not isinstance(event, kind):
        raise RuntimeError(f"the training process answered {event}")
    return event


def _publish(folder: Path, number: int) -> None:
    from fedpatch.device_agent.models.store import ModelStore

    ModelStore(folder / "models").publish(TASK.name, "run", number)


def summarised(samples: list[dict[str, float]], seconds: float) -> dict[str, Any]:
    """Return all samples, the slope after the warm-up, and the slope of the last third, since caches fill up."""
    last = samples[-len(samples) // 3 :]
    return {
        "seconds": round(seconds, 1),
        "slope": _slope(samples),
        "slope_of_last_third": _slope(last),
        "samples": samples,
    }


def _slope(samples: list[dict[str, float]]) -> dict[str, float]:
    return asdict(slope([one["round"] for one in samples], [one["resident_kib"] for one in samples]))


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    for name, found in document["plays"].items():
        first, last = found["samples"][0], found["samples"][-1]
        grown = f"{first['resident_kib']:.0f} to {last['resident_kib']:.0f} KiB"
        yield f"{name}: {last['round']} rounds in {found['seconds']:.0f} s, {grown}"
        for what in ("slope", "slope_of_last_third"):
            one = found[what]
            growth = f"{one['per_100_rounds']:+.3g} ± {SIGNIFICANT * one['standard_error']:.2g} KiB per 100 rounds"
            yield f"  {what.replace('_', ' '):20} {growth}"


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main(
    rounds: Annotated[int, typer.Option(min=400)] = 3000,
    every: Annotated[int, typer.Option(min=1, help="Rounds between two samples.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Where the samples and the slopes go.")] = None,
    models: Annotated[str, typer.Option(help="Personal models: no, yes, or both in turn.")] = "both",
) -> None:
    """Train for a long time, and report the memory that each round costs."""
    command = " ".join(["python -m tests.faults.training_memory", *sys.argv[1:]])
    document: dict[str, Any] = {"command": command, "commit": _commit(), "machine": machine(), "plays": {}}
    exceeds = False
    for name in ("no", "yes") if models == "both" else (models,):
        with tempfile.TemporaryDirectory(prefix="fedpatch-memory-") as folder:
            samples, seconds = play(Path(folder), rounds, every, name == "yes")
        found = summarised(samples, seconds)
        exceeds |= Slope(**found["slope_of_last_third"]).exceeds(BOUND_KIB)
        document["plays"][f"personal models: {name}"] = found
    for line in lines(document):
        typer.echo(line)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, (json.dumps(document, indent=1) + os.linesep).encode(), mode=0o644)
    raise typer.Exit(exceeds)


if __name__ == "__main__":
    typer.run(main)
