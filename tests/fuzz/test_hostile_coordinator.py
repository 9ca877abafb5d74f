"""A coordinator that sends any messages in any order: the device keeps the protocol, and does honest work afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import (
    Effect,
    EndJob,
    JobKey,
    JobState,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
)
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    DownloadDamaged,
    DownloadStarted,
    JobEvent,
    LinkRestored,
    MessageReceived,
    OwnerPaused,
    OwnerResumed,
    TrainingFailed,
    TrainingProgressed,
    UpdateTrained,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.chunks import check_manifest, cut
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import (
    ENCODINGS,
    Ack,
    Cancel,
    Committed,
    Grant,
    Manifest,
    Refused,
    RetryAfter,
    TaskCapability,
    UpBody,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import FailReason, RefuseReason
from tests.device_agent.jobs import requested
from tests.fuzz.effort import tries
from tests.fuzz.hostile_messages import (
    BITMAPS,
    BLOBS,
    DIGESTS,
    EPOCHS,
    MANIFESTS,
    MODEL,
    RUNS,
    addressed,
    chunks,
    weight,
)
from tests.shared.arbitrary_messages import envelopes, of_message
from tests.support.specs import CHUNK_BYTES, SCHEMA, TASK, TASKS, envelope_of, model, run_spec, update

# Some bytes are long on purpose, so their repr is long too.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

MAX_BLOB_BYTES = 10_000
MAX_WEIGHT = 100_000
FLOOD = 30
ROUNDS = st.integers(0, 3) | st.just(2**53)
STEPS_S = (0.0, 0.5, 3.0, 31.0, 301.0, 1e6)
REQUEST = WorkRequest(SCHEMA, "affine", run_spec().plan, model(MODEL), "fp32", CHUNK_BYTES, 300.0)
REQUESTS = st.one_of(
    st.builds(
        replace,
        st.just(REQUEST),
        model=st.just(model(MODEL)) | MANIFESTS,
        deadline_s=st.sampled_from([0.0, 1.0, 300.0, 1e9]),
        chunk_bytes=st.sampled_from([1, CHUNK_BYTES, 2**53]),
        encoding=st.sampled_from(["fp32", "fp32", "~" * 64]),
        schema=st.sampled_from([SCHEMA, SCHEMA, "00" * 32]),
    ),
    of_message(WorkRequest),
)
CAPABILITIES = st.sampled_from([TASKS, TASKS, (), (TaskCapability("~" * 64, SCHEMA, 0),) * 64])
KEYS = st.builds(JobKey, st.sampled_from(RUNS), st.sampled_from(EPOCHS), ROUNDS, st.just(TASK))
VERDICTS = st.sampled_from(
    [AdmissionDecision(True), AdmissionDecision(True), AdmissionDecision(False, "\U0001f353" * 600)]
)
ANSWERS = st.one_of(
    st.builds(Grant, DIGESTS, st.sampled_from([1, 4, 4096]), BITMAPS),
    st.builds(Ack, DIGESTS, BITMAPS),
    st.builds(Committed, DIGESTS),
    st.builds(Refused, DIGESTS, st.sampled_from(RefuseReason)),
    st.builds(RetryAfter, DIGESTS, st.sampled_from([0.0, 5.0, 1e9])),
    st.builds(Cancel, st.just("late")),
    envelopes().map(lambda envelope: envelope.body),
)


class HostileCoordinator(RuleBasedStateMachine):
    """A job with the actions of its shell; training is a separate rule, so that it may end at any time."""

    @initialize()
    def begin(self) -> None:
        """Start with a device that was just switched on."""
        self.job = Job(max_blob_bytes=MAX_BLOB_BYTES)
        self.now = 0.0
        self.trains: StartTraining | None = None
        self.update: Manifest | None = None
        self.chunks: list[int] = []

    # ---- actions of the coordinator

    @rule(envelope=addressed(REQUESTS, ROUNDS), tasks=CAPABILITIES, verdict=VERDICTS)
    def ask(self, envelope, tasks, verdict):
        """Send a work request of any run and round."""
        self.perform(self.job.handle(requested(envelope, tasks, verdict), self.now))

    @rule(manifest=st.just(model(MODEL)) | MANIFESTS, number=st.integers(1, 9))
    def ask_properly(self, manifest, number):
        """Send a valid request, except that its model may be hostile."""
        self.ask(envelope_of(replace(REQUEST, model=manifest), number), TASKS, AdmissionDecision(True))

    @rule(envelope=addressed(ANSWERS, ROUNDS))
    def answer(self, envelope):
        self._receive(envelope)

    @rule(envelope=addressed(REQUESTS, ROUNDS), verdict=VERDICTS)
    def flood(self, envelope, verdict):
        """Send the same request many times: the repetitions use no more memory than the first request."""
        self.ask(envelope, TASKS, verdict)
        before = weight(self.job)
        for _ in range(FLOOD):
            self.ask(envelope, TASKS, verdict)
        assert weight(self.job) < before + FLOOD

    @rule(body=ANSWERS)
    def answer_now(self, body):
        if self.job.key is not None:
            key = self.job.key
            self._receive(envelope_of(body, key.round, run=key.run, epoch=key.epoch, task=key.task))

    @rule(chunk=chunks((MODEL, *BLOBS)))
    def deliver(self, chunk):
        """Deliver a chunk of this model or of another model."""
        self.perform(self.job.handle(ChunkReceived(chunk), self.now))

    @rule()
    def deliver_all(self):
        """Deliver the whole model that most requests name."""
        for index in range(3):
            self.deliver(cut(MODEL, model(MODEL), index))

    # ---- events on the device itself

    @rule(blob=st.sampled_from(BLOBS), key=st.none() | KEYS)
    def train(self, blob, key):
        """The training ends: of the present job, or of another job that should already have been stopped."""
        if self.trains is not None:
            self.perform(self.job.handle(UpdateTrained(key or self.trains.key, update(blob)), self.now))

    @rule(reason=st.sampled_from(FailReason), key=st.none() | KEYS)
    def fail(self, reason, key):
        """The training of the present job or of another job fails."""
        if self.trains is not None:
            self.perform(self.job.handle(TrainingFailed(key or self.trains.key, reason, "private words"), self.now))

    @rule()
    def find_damage(self):
        """The SHA-256 of the complete model turns out to be wrong."""
        self.perform(self.job.handle(DownloadDamaged(), self.now))

    @rule(done=st.integers(0, 2**53), total=st.integers(0, 2**53), key=KEYS)
    def show_progress(self, done, total, key):
        self.perform(
            self.job.handle(TrainingProgressed(self.trains.key if self.trains else key, done, total), self.now)
        )

    @rule(seconds=st.sampled_from(STEPS_S), reconnected=st.booleans())
    def wait(self, seconds, reconnected):
        """Time passes; the link may have been restored."""
        self.now += seconds
        if reconnected:
            self.job.handle(LinkRestored(), self.now)
        self.perform(self.job.tick(self.now))

    @rule(pause=st.booleans())
    def mind(self, pause):
        """The owner pauses or resumes the device."""
        self.perform(self.job.handle(OwnerPaused(), self.now) if pause else self.job.handle(OwnerResumed(), self.now))

    # ---- invariants

    @invariant()
    def wakes_in_the_future(self):
        """After a tick the job's next deadline is in the future, or it has none."""
        deadline = self.job.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.perform(self.job.tick(self.now))
            deadline = self.job.next_deadline()
        assert deadline is None or deadline > self.now

    @invariant()
    def knows_what_it_is_on(self):
        """A job has a key and a status for its presence exactly while it has work."""
        assert (self.job.state is JobState.IDLE) == (self.job.key is None) == (self.job.status() is None)

    @invariant()
    def an_idle_device_is_not_paused(self):
        """A pause ends with its job."""
        assert not (self.job.paused and self.job.key is None)

    @invariant()
    def memory_is_bounded(self):
        """The job's memory does not grow with received messages."""
        assert weight(self.job) <= MAX_WEIGHT

    # ---- the shell

    def _receive(self, envelope) -> None:
        try:
            effects = self.job.handle(MessageReceived(envelope), self.now)
        except WireError:
            return
        if isinstance(envelope.body, Grant):
            assert sum(isinstance(effect, SendChunk) for effect in effects) <= envelope.body.window
        self.perform(effects)

    def perform(self, effects: list[Effect]) -> None:
        """Run all effects, and those that follow from them."""
        drive_job(self.job, effects, self, lambda: self.now)

    def run_effect(self, effect: Effect) -> list[JobEvent]:
        match effect:
            case SendMessage():
                assert isinstance(effect.envelope.body, get_args(UpBody)), "a device says only what a device may say"
                assert decode(encode(effect.envelope)) == effect.envelope, "beyond the limits of the wire"
                assert "private" not in repr(effect.envelope)
            case StartDownload():
                for blob in effect.blobs:
                    check_manifest(blob, MAX_BLOB_BYTES)
                have = {blob.digest: range(0, blob.chunk_count, 2) for blob in effect.blobs}
                return [DownloadStarted(have)]
            case StartTraining():
                assert {effect.request.encoding, effect.request.model.encoding} <= set(ENCODINGS)
                self.trains = effect
            case SpoolUpdate():
                self.update = effect.manifest
            case SendChunk():
                assert self.update is not None
                assert 0 <= effect.index < self.update.chunk_count
                self.chunks.append(effect.index)
            case EndJob():
                self.update = self.trains = None
        return []

    # ---- afterwards

    def teardown(self) -> None:
        """An honest coordinator begins a run, and the device takes part from the request to `committed`."""
        if not hasattr(self, "job"):
            return
        key = JobKey("honest", 1, 1, TASK)
        self.perform(self.job.handle(requested(envelope_of(REQUEST, run="honest")), self.now))
        assert self.job.key == key
        self.deliver_all()
        assert self.trains is not None
        self.perform(self.job.handle(UpdateTrained(self.trains.key, update()), self.now))
        self.chunks.clear()
        self._receive(envelope_of(Grant(update().digest, 4, b"\0"), run="honest"))
        assert sorted(self.chunks) == [0, 1, 2, 3]
        self._receive(envelope_of(Committed(update().digest), run="honest"))
        assert self.job.key is None


TestHostileCoordinator = HostileCoordinator.TestCase
TestHostileCoordinator.settings = tries(80, stateful_step_count=40)
