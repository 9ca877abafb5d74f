"""A coordinator without a broker: a real engine and performer with real files; the test sends the devices' messages."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedpatch.coordinator.blobs.blob_store import BlobStore, FileBlobs
from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.masking.masked_groups import RunGroups
from fedpatch.coordinator.rounds.run_engine import Engine, drive_engine
from fedpatch.coordinator.rounds.run_events import (
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    HoldsChanged,
    RunStarted,
)
from fedpatch.coordinator.runtime.aggregator import Aggregator
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.runtime.effect_runner import EffectRunner
from fedpatch.coordinator.runtime.event_queue import EventQueue
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.runtime.ports import REAL
from fedpatch.coordinator.runtime.resumed_rounds import reconcile, rest_of_pause, resume_round
from fedpatch.coordinator.runtime.run_preparation import Prepared, run_spec
from fedpatch.coordinator.runtime.update_store import UpdateStore
from fedpatch.coordinator.runtime.update_writer import MAX_IN_PROGRESS
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.shared.app.formatting import printable
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.codec import to_plain
from fedpatch.shared.wire.messages import Accept, Envelope, Offer, UpdateReport
from tests.coordinator.fake_link import RecordedLink
from tests.coordinator.registry_builders import new_run
from tests.support.specs import there


class Bench:
    """A coordinator whose rounds need only devices a and b; `again` is the next process after a kill."""

    def __init__(
        self,
        directory: Path,
        prepared: Prepared,
        registry: Registry,
        run: str = "",
        writing: dict[str, Any] | None = None,
        blobs: BlobStore | None = None,
        entropy: int = 1,
        **changes: Any,
    ) -> None:
        self.prepared, self.registry, self.directory = prepared, registry, directory
        self.lines: list[str] = []
        # Spread of an update's values: equal values are compressed to almost no bytes.
        self.noise = 0.0
        # Without bounds: these updates are distinguishable, and their changes are not usual ones.
        terms = {"devices": 2, "rounds": 1, "quorum": 0.1, "encoding": "fp32+zstd", "norm_bound": "off", **changes}
        settings = RunSettings(**terms)
        run = run or new_run(registry, schema=prepared.schema.digest).id
        blobs = self.blobs = FileBlobs(directory) if blobs is None else blobs
        reconcile(registry, run, blobs, prepared, self.lines.append)
        spec = run_spec(run, registry.next_epoch(run), settings, prepared, 2**16)
        state, _, meta = load_checkpoint(blobs)
        now = BootTime.now()
        unfinished = resume_round(registry, blobs, spec, prepared, state, self.lines.append, now)
        rest_s = rest_of_pause(meta, spec, now) if unfinished is None else 0.0
        records = registry.rounds.records(run)
        self.quarantine = Quarantine(registry, "demo", settings.quarantine_after, self.lines.append)
        self.engine = Engine(
            spec,
            records=records,
            unfinished=unfinished,
            jitter=random.Random(1),
            holds=self.quarantine.held,
            rest_s=rest_s,
            groups=RunGroups(spec.seed, registry.rounds.groups(run)),
        )
        self.link = link = RecordedLink()
        self.sent: list[tuple[str, Any]] = []
        self.event_queue = EventQueue(lambda: time.monotonic())  # a test may patch it
        ports = replace(REAL, boot_time=lambda: BootTime.now())  # a test may patch it
        connection: Any = SimpleNamespace(
            send=self._send, fleet="demo", link=link, event_queue=self.event_queue, ports=ports
        )
        self.publisher = ModelPublisher(link, "demo", directory / "note")

        def say(line: str) -> None:
            self.lines.append(printable(line))

        counters = DeviceCounters(registry, "demo", spec, self.quarantine, say)
        self.aggregator = Aggregator(
            state, blobs, directory, prepared, spec, say, opening=unfinished, entropy=random.Random(entropy)
        )
        self.updates = UpdateStore(
            blobs,
            registry,
            self.engine,
            requirements=self.aggregator.requirements,
            counters=counters,
            **(writing or {}),
        )
        self.performer = EffectRunner(
            self.engine,
            connection=connection,
            publisher=self.publisher,
            aggregator=self.aggregator,
            updates=self.updates,
            counters=counters,
            say=say,
        )
        self._changes, self._entropy = changes, entropy
        self.perform(self.engine.handle(RunStarted(), time.monotonic()))

    def _send(self, device: str, envelope: Envelope) -> None:
        self.sent.append((device, envelope))

    def begin(self, devices: str = "ab") -> Bench:
        """Bring these devices online in this order; each accepts."""
        for device in devices:
            self.perform(self.engine.handle(DevicePresence(device, there()), time.monotonic()))
        for device in devices:
            self.receive(device, Accept(10))
        return self

    def look(self) -> None:
        """Quarantine offending devices, as the service does from time to time."""
        held = self.quarantine.poll()
        if held is not None:
            self.perform(self.engine.handle(HoldsChanged(held), time.monotonic()))

    def again(self, **changes: Any) -> Bench:
        """Return the next coordinator after a kill; it resumes from the disk."""
        return Bench(
            self.directory,
            self.prepared,
            self.registry,
            self.engine.spec.run,
            blobs=self.blobs,
            **{"entropy": self._entropy + 1, **self._changes, **changes},
        )

    def perform(self, effects: list[Any]) -> None:
        """Run effects as the service does."""
        self.event_queue.now_is_present()
        drive_engine(self.engine, effects, self.performer, lambda: self.event_queue.now)

    def finish_updates(self, *, wait: bool) -> None:
        """Handle the completion events of updates, as the service does."""
        for event in self.updates.completed(0 if wait else MAX_IN_PROGRESS):
            self.perform(self.engine.handle(event, self.event_queue.now))

    def receive(self, device: str, body: Any) -> None:
        """Handle a device's message of the open round."""
        spec = self.engine.spec
        envelope = Envelope(body, task=spec.task, run=spec.run, epoch=spec.epoch, round=self.engine.last_round)
        self.perform(self.engine.handle(DeviceMessage(device, envelope), time.monotonic()))

    def reported(self, number: int) -> set[str]:
        """Return the devices that are finished with a round, because it has their updates or is over."""
        current = self.engine.open
        return set("ab") if current is None or current.round.number != number else set(current.reports)

    def update(self, value: float, encoding: str = "") -> tuple[bytes, Any]:
        """Return an update with values near `value`, in the run's encoding or another one."""
        assert self.engine.open is not None
        schema = self.prepared.travelling
        drawn = np.random.default_rng(round(1000 * value))
        tensors = {
            spec.name: (value + self.noise * drawn.uniform(0, 1, spec.shape) ** 8).astype(spec.dtype)
            if self.noise
            else np.full(spec.shape, value, spec.dtype)
            for spec in schema.specs
        }
        report = UpdateReport(self.aggregator.base, 10, 1, 0.5, 0.5, 0.5, 0.0, 0.0)
        encoding, base = encoding or self.engine.spec.encoding, self.aggregator.state.tensors
        packed = pack(tensors, schema, to_plain(report), encoding, base=base)
        return packed.blob, packed.manifest(2**16, schema)

    def upload(self, devices: str, value: float, encoding: str = "") -> None:
        """Handle the complete uploads of these devices, one after the other."""
        for device in devices:
            blob, manifest = self.update(value, encoding)
            self.receive(device, Offer(manifest))
            for index in range(manifest.chunk_count):
                self.perform(self.engine.handle(ChunkReceived(device, cut(blob, manifest, index)), time.monotonic()))
