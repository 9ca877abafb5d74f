"""The state that must remain after a power cut, by the marks before it. Each judge returns descriptions of missing state."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.device_agent.models.store import MODELS_DIRECTORY
from fedpatch.device_agent.policy.usage import read_today
from fedpatch.shared.errors import FedpatchError
from tests.device_agent.exported_models import present
from tests.power_cut.devices import kept, spooled
from tests.power_cut.disk import Image, Output, Record
from tests.power_cut.stories import FLEET, TERMS, MarkedBench, outcome, unmarked

_SEALED = (".fp", ".patch", ".previous", ".model")
_DIGEST_BYTES = hashlib.sha256().digest_size

Mark = dict[str, Any]
Marks = list[Mark]
Judge = Callable[[Path, Marks, Mark], Iterator[str]]


def marks_in(image: Image) -> Marks:
    """The marks up to the cut."""
    return [json.loads(line) for one in image.marks for line in one.data.splitlines()]


def problems(record: Record, judge: Judge, directory: Path, every: int = 1) -> Iterator[str]:
    """Problems of every disk after a power cut, or of one in `every`. `judge` gets the marks up to the cut, and the last."""
    end = [json.loads(step.what.data) for step in record.steps if isinstance(step.what, Output)][-1]
    for number, image in enumerate(record.images()):
        if number % every:
            continue
        place = image.put(directory / str(number))
        for problem in judged(judge, place / "state", marks_in(image), end):
            yield f"{image.label}: {problem}"
        shutil.rmtree(place)


def judged(judge: Judge, state: Path, marks: Marks, end: Mark) -> Iterator[str]:
    """Problems of one disk. An error of ours is one, too, since a power cut must not cause any."""
    try:
        yield from damaged_files(state)
        yield from judge(state, marks, end)
    except (FedpatchError, OSError, AssertionError, msgspec.DecodeError) as error:
        yield f"{type(error).__name__}: {error}"


def damaged_files(state: Path) -> Iterator[str]:
    """Sealed files under their own names are whole, old or new; a step of the global model is only a cache."""
    for path in state.rglob("*"):
        if path.name.endswith(_SEALED) and not path.name.startswith((".", "delta-")):
            content = path.read_bytes().partition(b"\n")[2]
            if hashlib.sha256(content[_DIGEST_BYTES:]).digest() != content[:_DIGEST_BYTES]:
                yield f"{path.name} is damaged"


def coordinator_keeps(state: Path, marks: Marks, end: Mark) -> Iterator[str]:
    """A resumed run has all state that was sent to devices and people, and reaches its end."""
    begun = [one for one in marks if one["what"] == "begun"]
    if not begun:
        return
    run = begun[0]["run"]
    committed, asked = by_round(marks, "committed"), by_round(marks, "asked")
    prepared = _prepared()
    with Registry(state / REGISTRY_FILE) as registry:
        info = registry.run(run)
        if any(one["what"] == "finished" for one in marks) and info.status != "finished":
            yield f"the run had finished, and is {info.status}"
        newest = max((one["epoch"] for one in marks if "epoch" in one), default=0)
        if info.epoch < newest:
            yield f"epoch {newest} was published, and the registry is at {info.epoch}"
        held = {device for one in marks if one["what"] == "held" for device in one["devices"]}
        if not held <= registry.holds.held(FLEET).keys():
            yield f"{held} were held back"
        terms = {**TERMS, "encoding": begun[0]["encoding"]}
        bench = MarkedBench(run_directory(state, run), prepared, registry, unmarked, run, **terms)
        round_now = load_checkpoint(run_directory(state, run))[0].round
        if round_now < max(asked, default=1) - 1:
            yield f"devices had been asked for round {max(asked)}, and the model is that after {round_now}"
        records = {record.round: record for record in registry.rounds.records(run)}
        for number, devices in committed.items():
            if number in records:
                lost = {device for device in devices if records[number].reported < len(devices)}
            else:
                lost = devices - bench.reported(number)
            if lost:
                yield f"round {number}: {sorted(lost)} had received `committed`"
        bench.play(committed)
        came_to = outcome(bench)
        if came_to != {name: end[name] for name in came_to}:
            yield f"the run comes to {came_to}, and would have come to {end}"


def device_keeps(state: Path, marks: Marks, end: Mark) -> Iterator[str]:
    """An update that was offered waits until it is settled, with the patch that belongs to it."""
    offered = [one for one in marks if one["what"] == "offered"]
    settled = {one["round"] for one in marks if one["what"] == "settled"}
    for one in offered:
        if one["round"] not in settled and spooled(state) != (one["round"], one["digest"]):
            yield f"the update of round {one['round']} had been offered, and what waits is {spooled(state)}"
    if offered:
        last = offered[-1]
        found = kept(state, last["round"])
        for name, value in found.items():
            if value != last[name]:
                yield f"round {last['round']} had been offered, and its {name} is not there"
    model = present(state / MODELS_DIRECTORY) or 0
    published = max((one["round"] for one in marks if one["what"] == "published"), default=0)
    if model < published:
        yield f"the personal model of round {published} was in use, and {model} is"
    if model and model not in settled:
        yield f"the personal model of round {model} is in use, whose update was not committed"
    spent = max((one["rounds"] for one in marks if one["what"] == "spent"), default=0)
    if spent and read_today(state).rounds < spent:
        yield f"{spent} rounds were spent, and {read_today(state).rounds} are known"


def by_round(marks: Iterable[dict[str, Any]], what: str) -> dict[int, set[str]]:
    """The devices that got a kind of message, by round."""
    found: dict[int, set[str]] = defaultdict(set)
    for one in marks:
        if one["what"] == what:
            found[one["round"]].add(one["device"])
    return found


_KNOWN: list[Prepared] = []


def _prepared() -> Prepared:
    if not _KNOWN:
        _KNOWN.append(prepare(RunSettings(strategy="fedavg", private="none")))
    return _KNOWN[0]
