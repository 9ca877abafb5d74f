"""Judges a run that had faults: its result must be that of Algorithm 1 with the devices that its records name.

`judge` returns the problems in words, or none: no committed update is missing from its round, none is counted twice, every
round ended in time, and the model of each round and each device's patch are those of an oracle (tests.faults.lesson) without
faults to which the same devices report.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
from fedpatch.shared.tensors.arrays import Array
from tests.faults.lesson import Lesson
from tests.faults.scene import Scene, reporters
from tests.faults.watch import Watch
from tests.support.listing import listed

TOLERANCE = 1e-5
LATE_S = 10.0
"""How late a coordinator may notice a deadline on a machine with other work."""


def judge(
    scene: Scene,
    watch: Watch,
    document: Mapping[str, Any],
    rounds: int,
    terms: Mapping[str, float],
    *,
    absent_s: float = 0.0,
) -> list[str]:
    """Return the problems of the run of a scene; it printed `document` and began with `terms`.

    There was no coordinator for `absent_s`: a round whose deadline passes meanwhile ends once there is one.
    """
    records = [RoundRecord.from_dict(one) for one in document["rounds"]]
    problems = [*watch.problems, *_books(document, records, rounds)]
    who: dict[int, tuple[str, ...]] = {}
    for record in records:
        if record.outcome == "aggregated":
            try:
                who[record.round] = reporters(record, scene.devices)
            except ValueError as error:
                problems.append(f"round {record.round}: {error}")
    problems += _promises(watch, who)
    problems += (text for record in records for text in _time(record, terms, absent_s))
    if problems:
        return problems
    return [*_models(scene, watch, records, who, Path(document["model"])), *_leftovers(scene)]


def _books(document: Mapping[str, Any], records: Sequence[RoundRecord], rounds: int) -> Iterator[str]:
    if document["stopped_because"] != "max_rounds":
        yield f"the run stopped because: {document['stopped_because']}"
    numbers = [record.round for record in records]
    if numbers != list(range(1, rounds + 1)):
        yield f"there are records of rounds {numbers}, not of 1 to {rounds}"


def _promises(watch: Watch, who: Mapping[int, Sequence[str]]) -> Iterator[str]:
    for number, device in sorted(watch.committed):
        if number in who and device not in who[number]:
            yield f"round {number}: {device} received `committed`, but the model is made of {', '.join(who[number])}"


def _time(record: RoundRecord, terms: Mapping[str, float], absent_s: float) -> Iterator[str]:
    taken_s = record.seconds - record.phase_seconds.select - record.phase_seconds.aggregate
    allowed_s = terms["deadline_s"] + terms["grace_s"]
    if taken_s > allowed_s + absent_s + LATE_S:
        without = f" and {absent_s:.1f} s without a coordinator" if absent_s else ""
        yield f"round {record.round} took {taken_s:.1f} s, with {allowed_s:g} s to deadline and grace{without}"


def _models(
    scene: Scene, watch: Watch, records: Sequence[RoundRecord], who: Mapping[int, Sequence[str]], exported: Path
) -> Iterator[str]:
    lesson, models = Lesson(scene.devices), 0
    for record in records:
        reported = who.get(record.round, ())
        trained = {device for number, device in watch.trained if number == record.round}
        lesson.round(trained.union(reported), reported)
        models += record.round in who
        # The number of a checkpoint is the number of rounds in its model, without failed rounds.
        if record.round in who and models in watch.models:
            state, _, _ = load_checkpoint(watch.models[models])
            yield from _differences(f"model of round {record.round}", state.tensors, lesson.model())
    with np.load(exported) as model:
        yield from _differences("exported model", dict(model), lesson.omega)
    for device in scene.devices:
        found, (batches, expected) = scene.patch(device), lesson.patch(device)
        if found.batches_done != batches:
            yield f"patch of {device}: has seen {found.batches_done} batches, not {batches}"
        elif batches:
            yield from _differences(f"patch of {device}", found.values, expected)


def _differences(what: str, found: Mapping[str, Array], expected: Mapping[str, Array]) -> Iterator[str]:
    if set(found) != set(expected):
        yield f"{what}: holds {sorted(found)}, not {sorted(expected)}"
        return
    far = {name: float(np.max(np.abs(found[name] - value), initial=0.0)) for name, value in expected.items()}
    worst = max(far, key=lambda name: far[name])
    if not far[worst] <= TOLERANCE:
        yield f"{what}: {worst} is {far[worst]:.2g} away from the oracle's"


def _leftovers(scene: Scene) -> Iterator[str]:
    left = [path.name for path in listed(scene.run_dir(scene.run), "updates/*")]
    if left:
        yield f"updates of rounds {left} are still on the coordinator's disk"
    file = scene.state_dir / REGISTRY_FILE
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as registry:
        (kept,) = registry.execute("SELECT count(*) FROM updates").fetchone()
    if kept:
        yield f"the registry still holds {kept} updates"
