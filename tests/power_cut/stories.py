"""A coordinator and a device, each in a process that is recorded: `python -m tests.power_cut.stories NAME STATE MARKS`.

When others begin to rely on a state, a line of JSON about it is written to MARKS at that moment.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.coordinator.privacy.noise_draw import SealedNoise
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.registry_rebuild import rebuild_registry
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.state.patch_store import PatchKey, PatchRecord, PatchState, PatchStore
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.tensors.arrays import values_digest
from fedpatch.shared.wire.messages import Committed, Envelope, Manifest, Offer, WorkRequest
from tests.coordinator.effect_runners import Bench
from tests.device_agent.jobs import REQUEST

Mark = Callable[..., None]

ROUNDS = 2
_DAY_S = 86_400.0
# A disk is tested minutes after its recording; the open round must not be over by then.
_NEVER_LATE: dict[str, Any] = {"deadline_s": _DAY_S, "grace_s": _DAY_S, "recruit_deadline_s": _DAY_S / 2}
TERMS: dict[str, Any] = {"rounds": ROUNDS, "quorum": 0.5, "norm_bound": "auto:0.5", "quarantine_after": 1} | _NEVER_LATE
VALUES = {"a": 0.1, "b": 0.7}
FLEET = "demo"


class MarkedBench(Bench):
    """A coordinator whose messages are marked. A device with a committed update sends none again: it has forgotten it."""

    def __init__(
        self, directory: Path, prepared: Prepared, registry: Registry, mark: Mark, run: str, **terms: Any
    ) -> None:
        self._mark = mark
        super().__init__(directory, prepared, registry, run, **terms)

    def _send(self, device: str, envelope: Envelope) -> None:
        super()._send(device, envelope)
        at = {"device": device, "round": envelope.round, "epoch": envelope.epoch}
        if isinstance(envelope.body, Committed):
            self._mark("committed", **at)
        elif isinstance(envelope.body, WorkRequest):
            self._mark("asked", **at)

    def play(self, committed: dict[int, set[str]] | None = None) -> None:
        """Run to the end. Device c offers nonsense and is held back; `committed` are updates of an earlier process."""
        for _ in range(4 * ROUNDS):
            if self.engine.stopped:
                return
            self.begin("cab")
            number = self.engine.last_round
            self.receive("c", Offer(replace(self.update(1.0)[1], schema="0" * 64)))
            self.look()
            if self.quarantine.held:
                self._mark("held", devices=sorted(self.quarantine.held))
            for device, value in VALUES.items():
                if device not in self.reported(number) | (committed or {}).get(number, set()):
                    self.upload(device, value * number)
        raise AssertionError(
            f"the run does not end; round {self.engine.last_round} waits for an update that was committed"
        )


def outcome(bench: Bench) -> dict[str, Any]:
    """The result of a run: its model and its records."""
    tensors = load_checkpoint(bench.directory)[0].tensors
    records = bench.registry.rounds.records(bench.engine.spec.run)
    books = [[one.round, one.outcome, one.reported, one.num_examples, list(one.bounded)] for one in records]
    return {"model": values_digest(tensors, bench.prepared.travelling), "books": books}


def coordinate(state: Path, mark: Mark, encoding: str = "fp32+zstd") -> None:
    """Two rounds; the end of the run is marked when it is in the registry."""
    prepared = prepare(RunSettings(strategy="fedavg", private="none"))
    terms: Any = {"task": "digits", "strategy": "fedavg", "private": "none", "settings": {}}
    with Registry(state / REGISTRY_FILE) as registry:
        run = registry.create_run(created_at=0.0, schema=prepared.schema.digest, **terms).id
        mark("begun", run=run, encoding=encoding)
        bench = MarkedBench(run_directory(state, run), prepared, registry, mark, run, encoding=encoding, **TERMS)
        bench.play()
        registry.finish_run(run, stopped_because="rounds", user_accuracy=0.5, model=None)
        mark("finished", **outcome(bench))


def coordinate_by_differences(state: Path, mark: Mark) -> None:
    coordinate(state, mark, "delta-bf16")


def attend(state: Path, mark: Mark) -> None:
    """A device: three rounds, of which the second is refused."""
    from tests.power_cut.devices import DeviceStory

    story = DeviceStory(state, mark)
    for number, committed in ((1, True), (2, False), (3, True)):
        story.round(number, committed=committed)


def attend_masked(state: Path, mark: Mark) -> None:
    """A device that offers a masked update, and accepts a request with a revocation list."""
    from tests.power_cut.masked_devices import attend_masked_rounds

    attend_masked_rounds(state, mark)


def keep_and_delete(state: Path, mark: Mark) -> None:
    """Files that a store keeps or deletes durably, outside the rounds of the other stories."""
    with Registry(state / REGISTRY_FILE) as registry:
        terms: Any = {"task": "digits", "strategy": "fedavg", "private": "none", "settings": {}}
        run = registry.create_run(created_at=0.0, schema="0" * 64, **terms).id
    rebuild_registry(state / REGISTRY_FILE)
    mark("rebuilt")
    noise = SealedNoise(run_directory(state, run))
    noise.of_round(1, 8)
    mark("drawn")
    noise.drop_until(1)
    mark("deleted")
    patches = PatchStore(state / "patches")
    key = PatchKey("toy", "0" * 64, "affine")
    gamma = PatchState({"gamma": np.ones(4, np.float32)}, 0)
    for number in (1, 2):
        patches.save(PatchRecord(key, run, number, gamma, gamma))
        mark("saved")
    write_atomic(patches.directory / key.file_name, b"damaged")
    patches.load(key, run, 3)
    mark("set aside")
    patches.forget(key)
    mark("deleted")
    spool = UpdateSpool(state / "spool")
    spool.save(Spooled(JobKey(run, 1, 1, "toy"), Manifest("0" * 64, 8, 8, 1, "fp32", 8, "0" * 64), REQUEST))
    mark("offered")
    spool.note_committed()
    mark("committed")


def marker(path: Path) -> Mark:
    """Writes each mark in one call."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def mark(what: str, **fields: Any) -> None:
        os.write(fd, json.dumps({"what": what, **fields}).encode() + b"\n")

    return mark


def unmarked(what: str, **fields: Any) -> None:
    """Discard marks, for processes that continue after a cut."""


STORIES: dict[str, Callable[[Path, Mark], None]] = {
    "coordinator": coordinate,
    "coordinator-by-differences": coordinate_by_differences,
    "device": attend,
    "masked-device": attend_masked,
    "stores": keep_and_delete,
}


def mark_sites_of_syncs(mark: Mark) -> None:
    """Mark each call of os.fsync with its site: the line that calls it or `sync_directory`."""
    real = os.fsync

    def fsync(fd: Any) -> None:
        frames = [one for one in traceback.extract_stack()[:-1] if one.name != "sync_directory"]
        mark("sync", site=f"{Path(frames[-1].filename).name}:{frames[-1].name}:{frames[-1].lineno}")
        real(fd)

    os.fsync = fsync


if __name__ == "__main__":
    to_file = marker(Path(sys.argv[3]))
    if sys.argv[4:] == ["sites"]:
        mark_sites_of_syncs(to_file)
    STORIES[sys.argv[1]](Path(sys.argv[2]), to_file)
