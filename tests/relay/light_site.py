"""Light devices in this process at a real broker: the agent's job and link, each with its own update and examples.

The update of a device follows from its name, the model and the round, so that two fleets of equal names give equal updates.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

import numpy as np

from benchmarks.device.light_device import LightDevice, ModelChunks, Tally
from benchmarks.device.light_updates import StandInUpdates
from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_effects import MaskUpdate
from fedpatch.device_agent.job.job_events import JobEvent, TrainingFailed
from fedpatch.device_agent.runtime.model_fetcher import FetchEvent
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.device_agent.training.masked_update import unmasked_blob
from fedpatch.shared.mqtt.client import LinkEvent
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Schema
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.messages import Evaluation, Manifest, TaskCapability, UpdateReport, WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason

_LOOK_EVERY_S = 0.05


def examples_of(device: str) -> int:
    """The training examples of a device."""
    return 20 + zlib.crc32(device.encode()) % 30


def accuracy_of(device: str) -> float:
    """The user accuracy that a device reports."""
    return zlib.crc32(device.encode()) % 101 / 100


class NamedUpdates(StandInUpdates):
    """The updates of one device: the global model and noise of the device's own."""

    def __init__(self, schema: Schema, device: str) -> None:
        super().__init__(schema, examples_of(device))
        self._device = device
        self._whole = schema
        self.delay_s = 0.0
        self.requests: list[WorkRequest] = []

    def make(
        self, request: WorkRequest, way: DownloadPlan, blobs: Mapping[str, bytes], round_number: int
    ) -> tuple[Manifest, bytes]:
        """Return the update, as a manifest and a blob."""
        self.requests.append(request)
        time.sleep(self.delay_s)
        public = parse_policy(request.private).public(self._whole).with_moments(request.plan.moments)
        model = way.model
        raw_bytes = model.raw_bytes
        base = unpack(blobs[model.digest], encoding=model.encoding, raw_bytes=raw_bytes, schema=public)[1]
        rng = np.random.default_rng([zlib.crc32(self._device.encode()), round_number])
        update = {}
        for spec in public.specs:
            noise = 0.01 * rng.standard_normal(spec.shape) if spec.trainable else 0.0
            update[spec.name] = (base[spec.name] + noise).astype(spec.dtype)
        accuracy = accuracy_of(self._device)
        report = UpdateReport(model.digest, examples_of(self._device), 1, 0.5, accuracy, accuracy, 0.0, 0.0)
        packed = pack(update, public, report.plain, request.encoding, base=base, seed=round_number)
        return packed.manifest(request.chunk_bytes, public), packed.blob

    def evaluation(self, request: WorkRequest) -> Evaluation:
        """Return the answer to an evaluate round: test examples are as many as training examples."""
        self.requests.append(request)
        time.sleep(self.delay_s)
        return Evaluation(request.model.digest, accuracy_of(self._device), examples_of(self._device), 0.1)

    def vector(self, request: WorkRequest, way: DownloadPlan, blobs: Mapping[str, bytes], round_number: int) -> bytes:
        """Return the vector of a masked round, not masked yet."""
        self.requests.append(request)
        assert request.secure is not None
        public = self.travelling(request)
        base, number = self._come_to(way, blobs, public), zlib.crc32(self._device.encode())
        rng = np.random.default_rng([number, round_number])
        update = {
            spec.name: (base[spec.name] + 0.01 * rng.standard_normal(spec.shape)).astype(spec.dtype)
            for spec in public.specs
        }
        accuracy = accuracy_of(self._device)
        report = UpdateReport(request.model.digest, examples_of(self._device), 1, 0.5, accuracy, accuracy, 0.0, 0.0)
        return unmasked_blob(
            request.secure,
            public,
            model=base,
            update=update,
            report=report,
            metric=MetricTerms(),
            seed=number + round_number,
        )


class SiteDevice(LightDevice):
    """A light device that may pause, or fail once, right after its group has exchanged its shares."""

    gives_up_after_sharing = False
    pause_s = 0.0

    def _mask(self, effect: MaskUpdate) -> JobEvent:
        time.sleep(self.pause_s)
        if not self.gives_up_after_sharing:
            return super()._mask(effect)
        self.gives_up_after_sharing = False
        return TrainingFailed(effect.key, FailReason.TRAINING, "given up")


class LightSite:
    """The devices of one fleet, each run by a thread of its own; they connect within the `with`.

    With `ca_file` they fetch models by URL.
    """

    def __init__(
        self, broker: str, fleet: str, task: str, schema: Schema, devices: list[str], ca_file: Path | None = None
    ) -> None:
        self._inboxes: dict[str, SimpleQueue[LinkEvent | FetchEvent]] = {device: SimpleQueue() for device in devices}
        self.tally = Tally()
        self.updates = {device: NamedUpdates(schema, device) for device in devices}
        self.devices = {
            device: SiteDevice(
                Identity.new(fleet, device),
                broker=broker,
                events=lambda one, event: self._inboxes[one.me.device].put(event),
                capability=TaskCapability(task, schema.digest, examples_of(device)),
                updates=self.updates[device],
                chunks=ModelChunks(),
                tally=self.tally,
                ca_file=ca_file,
            )
            for device in devices
        }
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(device,), daemon=True) for device in devices]

    def _run(self, name: str) -> None:
        device, inbox = self.devices[name], self._inboxes[name]
        while not self._over.is_set():
            with contextlib.suppress(Empty):
                device.handle(inbox.get(timeout=_LOOK_EVERY_S), time.monotonic())
            device.tick(time.monotonic())

    def __enter__(self) -> Self:
        for device in self.devices.values():
            device.link.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        for device in self.devices.values():
            device.link.stop()
