"""Devices of masked rounds with their real keys, masks and vectors, around a coordinator without a broker."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedpatch.coordinator.aggregation.masked_mean import vector_layout
from fedpatch.coordinator.rounds.run_events import ChunkReceived, DeviceMessage, DevicePresence, TimePassed
from fedpatch.device_agent.job.masked_steps import BASE_SPENT
from fedpatch.device_agent.masking.masking_round import RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.shared.masking.device_vector import make_vector
from fedpatch.shared.masking.masked_blob import MaskedUpdate, add_masks, write_masked_blob
from fedpatch.shared.masking.private_vector import PrivateLayout, make_private_vector
from fedpatch.shared.masking.skellam_noise import skellam_values
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Schema
from fedpatch.shared.wire.chunks import cut, describe
from fedpatch.shared.wire.codec import from_bytes
from fedpatch.shared.wire.features import DEVICE_FEATURES, MASKED_FEATURE
from fedpatch.shared.wire.masking_messages import Agreed, Agreement, Inbox, Reveal, Roster, Unmask
from fedpatch.shared.wire.messages import (
    Accept,
    Cancel,
    Committed,
    Decline,
    Envelope,
    Grant,
    Manifest,
    Offer,
    UpdateReport,
    WorkRequest,
)
from tests.coordinator.effect_runners import Bench
from tests.support.specs import there

TERMS: Mapping[str, Any] = {
    "secure": "groups",
    "threshold": "half",
    "strategy": "fedavg",
    "encoding": "masked-u8",
    "norm_bound": "off",
    "max_num_examples": "off",
    "group_size": 8,
    "weight_cap": 50,
    "deadline_s": 600.0,
}
"""Settings of a small masked run."""


def names(count: int) -> list[str]:
    """Return this number of device names, sorted."""
    return [f"pi-{number:02}" for number in range(count)]


def examples(device: str) -> int:
    """Return the number of examples of a device: different for each device, and some above the weight cap."""
    return 20 + 3 * int(device.removeprefix("pi-"))


class MaskedDevice:
    """A device that answers each message at once. It keeps its keys while the coordinator is killed."""

    def __init__(self, name: str, schema: Schema) -> None:
        self.name, self.schema = name, schema
        self.rounds = MaskingRounds(name, random.Random(name).randbytes)
        self.elements: dict[int, Array] = {}
        self.blobs: dict[tuple[int, bytes], tuple[bytes, Manifest]] = {}  # by round and group
        self.committed: set[str] = set()  # digests of updates
        self.cancelled: set[int] = set()
        self.request: WorkRequest | None = None
        self.tamper: Callable[[Envelope], Envelope] = lambda envelope: envelope
        self.cut_off = 0
        self.masks = MASKED_FEATURE  # its version of masking
        self.features: tuple[str, ...] = ()
        self.spoil: Callable[[Array], Array] = lambda elements: elements

    def answers(self, envelope: Envelope) -> list[Any]:
        """Return the device's messages and chunks in answer to a message."""
        envelope = self.tamper(envelope)
        number, name = envelope.round, RoundName(envelope.task, envelope.run, envelope.round)
        match envelope.body:
            case WorkRequest():
                self.request = envelope.body
                keys = self.rounds.begin(name, envelope.body)
                if keys is None:
                    return [BASE_SPENT]
                return [Accept(1, keys), *([self._offer(number)] if self._has_update(number) else [])]
            case Roster() | Inbox() | Unmask() | Agreed():
                answer = self.rounds.handle(name, envelope.body)
                if isinstance(envelope.body, Inbox) and self.rounds.is_ready:
                    return [] if self._update(number)[1].digest in self.committed else [self._offer(number)]
                return [answer.body] if answer.body is not None else []
            case Grant():
                blob, manifest = self._update(number)
                return [cut(blob, manifest, index) for index in range(manifest.chunk_count)]
            case Committed():
                self.committed.add(envelope.body.digest)
            case Cancel():
                self.cancelled.add(number)
        return []

    def _offer(self, number: int) -> Offer:
        """Return the offer with the device's codes over the masking set."""
        manifest = self._update(number)[1]
        state = self.rounds.note_update(manifest.digest) or self.rounds.state
        assert state is not None
        return Offer(manifest, state.codes)

    def _has_update(self, number: int) -> bool:
        state = self.rounds.state
        return state is not None and state.roster is not None and (number, state.group.context) in self.blobs

    def _update(self, number: int) -> tuple[bytes, Manifest]:
        request, state = self.request, self.rounds.state
        assert request is not None and request.secure is not None and state is not None
        key = number, state.group.context
        if key not in self.blobs:
            self.elements[number] = self._vector(request, number)
            masked = add_masks(self.spoil(self.elements[number]), self.rounds.masks())
            blob = write_masked_blob(MaskedUpdate(state.group.context, request.model.digest, masked))
            blob = blob[: len(blob) - self.cut_off]
            manifest = describe(
                blob, chunk_bytes=2**16, encoding=request.encoding, raw_bytes=len(blob), schema=self.schema.digest
            )
            self.blobs[key] = blob, manifest
        return self.blobs[key]

    def _vector(self, request: WorkRequest, number: int) -> Array:
        """Return the vector before masking; with differential privacy it has the device's noise."""
        step, terms = step_of(self.name, number, self.schema), request.privacy
        assert request.secure is not None
        if terms is not None:
            elements = make_private_vector(PrivateLayout(self.schema, terms.clip, terms.steps), step, number)
            noise = skellam_values(self.rounds.noise(terms), len(elements))
            noised: Array = elements + noise.astype(elements.dtype)
            return noised
        layout = vector_layout(self.schema, request.secure)
        report = UpdateReport(request.model.digest, examples(self.name), 1, 0.5, 0.25, 0.75, 0.0, 0.0)
        return make_vector(layout, step=step, report=report, metric=MetricTerms(), seed=number)


def step_of(device: str, number: int, schema: Schema) -> dict[str, Array]:
    """Return the step of a device in a round; it depends only on both."""
    drawn = np.random.default_rng([number, int(device.removeprefix("pi-"))])
    return {spec.name: drawn.normal(scale=0.01, size=spec.shape) for spec in schema.specs}


Change = Callable[[str, Any], Any]
"""Changes an answer of a device before it arrives; returns None to lose it."""


class Clock:
    """The clock of a test, used instead of time.monotonic."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class MaskedFleet:
    """The devices of one coordinator.

    Args:
        bench: The coordinator.
        clock: Its clock.
        devices: Devices that earlier coordinators have met; new ones are made for `count`.
        count: Number of devices.
    """

    def __init__(
        self, bench: Bench, clock: Clock, count: int = 16, devices: Mapping[str, MaskedDevice] | None = None
    ) -> None:
        self.bench, self.clock = bench, clock
        schema = bench.prepared.travelling
        self.devices = dict(devices or {name: MaskedDevice(name, schema) for name in names(count)})
        self.lost: set[str] = set()
        self.change: Change = lambda device, answer: answer
        self.transcript: list[tuple[str, Any]] = []
        real = bench._send
        bench.performer._connection.send = lambda device, envelope: self._sent(real, device, envelope)  # type: ignore[method-assign]

    def come(self) -> MaskedFleet:
        """Bring all devices online."""
        for name in self.devices:
            features = (*DEVICE_FEATURES, self.devices[name].masks, *self.devices[name].features)
            self._perform(DevicePresence(name, replace(there(), features=features)))
        return self.settle()

    def settle(self) -> MaskedFleet:
        """Deliver messages until none is left."""
        bench = self.bench
        while bench.sent:
            waiting, bench.sent = deque(bench.sent), []
            while waiting:
                name, envelope = waiting.popleft()
                if name in self.lost or name not in self.devices:
                    continue
                self.transcript.append((name, envelope.body))
                for answer in self.devices[name].answers(envelope):
                    self._deliver(name, envelope, answer)
        return self

    def wait(self, seconds: float) -> MaskedFleet:
        """Let time pass, act at each deadline, and deliver the resulting messages."""
        end = self.clock.now + seconds
        while (due := self.bench.engine.next_deadline()) is not None and due <= end:
            self.clock.now = max(self.clock.now, due)
            self._perform(TimePassed())
            self.settle()
        self.clock.now = end
        return self

    def _sent(self, real: Callable[[str, Envelope], Any], device: str, envelope: Envelope) -> Any:
        """Check that the step on which a message depends is on the disk, then send the message."""
        needed = {Roster: "roster", Inbox: "masking", Unmask: "reported", Agreed: "agreement"}.get(type(envelope.body))
        if needed is not None:
            entries = self.bench.registry.rounds.masking(envelope.run, envelope.round)
            rosters = {one.group: from_bytes(one.content, Roster) for one in entries if one.step == "roster"}
            groups = {at for at, one in rosters.items() if device in [member.device for member in one.members]}
            saved = {(one.group, one.step) for one in entries}
            assert groups and all((at, needed) in saved for at in groups), (
                f"{needed} is not on the disk when it is sent"
            )
        return real(device, envelope)

    def _deliver(self, name: str, envelope: Envelope, answer: Any) -> None:
        answer = self.change(name, answer)
        if answer is None or name in self.lost:
            return
        self.transcript.append((name, answer))
        if isinstance(answer, Agreement | Reveal | Accept | Decline | Offer) or hasattr(answer, "boxes"):
            self._perform(DeviceMessage(name, replace(envelope, body=answer)))
        else:
            self._perform(ChunkReceived(name, answer))

    def _perform(self, event: Any) -> None:
        self.bench.perform(self.bench.engine.handle(event, self.clock.now))
