"""The download of a job: the whole model, deltas, damage, and plans that change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import (
    DropHeldModel,
    Effect,
    EndJob,
    JobState,
    PauseTraining,
    SendMessage,
    StartDownload,
    StartTraining,
    WriteChunk,
)
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    DownloadDamaged,
    DownloadStarted,
    JobEvent,
    OwnerPaused,
    OwnerResumed,
    TrainingFailed,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunks import Bitmap, cut
from fedpatch.shared.wire.messages import (
    Accept,
    Failed,
    Need,
    Progress,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import (
    FailReason,
    JobPhase,
)
from tests.device_agent.delta_jobs import (
    BLOBS,
    DELTAS,
    STEP_BLOBS,
    STEPS,
    VERSIONS,
    arrive,
    ask_holding,
    by_steps,
    delta_request,
)
from tests.device_agent.jobs import (
    BLOB,
    KEY,
    REQUEST,
    ask,
    downloading,
    here,
    replies,
    requested,
    training,
)
from tests.support.specs import TASKS, envelope_of, model


class TestDownload:
    def test_last_chunk_arrives_starts_training(self):
        job = downloading(have=frozenset({0}))
        assert job.handle(ChunkReceived(cut(BLOB, model(), 2)), 11.0) == [WriteChunk(cut(BLOB, model(), 2))]
        assert job.handle(ChunkReceived(cut(BLOB, model(), 2)), 11.0) == []
        kept, begun, train = job.handle(ChunkReceived(cut(BLOB, model(), 1)), 13.5)
        assert (kept, replies([begun])) == (WriteChunk(cut(BLOB, model(), 1)), [Progress(JobPhase.TRAINING, 0, 1)])
        assert train == StartTraining(KEY, REQUEST, 3.5, DownloadPlan(model()))
        assert train.ends_at == 10.0 + REQUEST.deadline_s
        assert job.handle(ChunkReceived(cut(BLOB, model(), 1)), 14.0) == []

    def test_all_chunks_on_disk_starts_training_at_once(self):
        job = Job(max_blob_bytes=10_000)
        ask(job)
        assert [type(effect) for effect in here(job, range(3), 10.0)] == [SendMessage, StartTraining]

    def test_late_answer_of_a_download_that_is_over_changes_nothing(self):
        job = training()
        assert here(job, range(3), 11.0) == []
        assert job.state is JobState.TRAINING

    def test_missing_chunks_are_requested_after_a_quiet_second(self):
        job = Job(max_blob_bytes=10_000)
        ask(job)
        assert job.handle(ChunkReceived(cut(BLOB, model(), 0)), 10.5) == []
        assert job.next_deadline() == 310.0
        assert job.tick(200.0) == []
        here(job, frozenset({1}), 200.0)
        assert job.next_deadline() == 201.0
        assert replies(job.tick(201.0)) == [Need(model().digest, b"\x05")]
        assert job.tick(201.5) == []

    def test_damaged_model_is_downloaded_again(self):
        job = training()
        assert job.handle(DownloadDamaged(), 20.0) == [StartDownload((model(),))]
        assert (job.state, here(job, frozenset(), 20.0)) == (JobState.DOWNLOADING, [])

    def test_deadline_passes_sends_failed(self):
        for job in (downloading(), training()):
            assert job.next_deadline() is not None
            assert replies(job.tick(310.0))[0] == Failed(FailReason.DEADLINE)
            assert job.state is JobState.IDLE


WHOLE = StartDownload((VERSIONS[-1],))


class TestDeltaDownload:
    def test_all_deltas_arrive_starts_training(self):
        job = Job(max_blob_bytes=10_000)
        accept, fetch = ask_holding(job, VERSIONS[0].digest)
        assert (replies([accept]), fetch) == ([Accept(10)], StartDownload(STEPS))
        job.handle(DownloadStarted({}), 10.0)
        assert arrive(job, BLOBS[-1]) == []
        assert all(
            isinstance(effect, WriteChunk) for blob in (STEP_BLOBS[2], STEP_BLOBS[0]) for effect in arrive(job, blob)
        )
        *_, begun, train = arrive(job, STEP_BLOBS[1], 13.0)
        assert replies([begun]) == [Progress(JobPhase.TRAINING, 0, 1)]
        assert train == StartTraining(KEY, delta_request(), 3.0, DownloadPlan(VERSIONS[-1], VERSIONS[0].digest, DELTAS))

    def test_model_held_starts_training_at_once(self):
        job = Job(max_blob_bytes=10_000)
        assert ask_holding(job, VERSIONS[-1].digest)[-1] == StartDownload(())
        _, train = job.handle(DownloadStarted({}), 10.0)
        assert train == StartTraining(KEY, delta_request(), 0.0, DownloadPlan(VERSIONS[-1], VERSIONS[-1].digest))

    def test_missing_chunks_of_each_delta_are_requested(self):
        """The requests follow one pause for all deltas, like that for the chunks of one blob."""
        job = Job(max_blob_bytes=10_000)
        ask_holding(job, VERSIONS[0].digest)
        job.handle(DownloadStarted({STEPS[0].digest: [1], STEPS[2].digest: [0]}), 10.0)
        assert job.next_deadline() == 11.0
        needs = replies(job.tick(11.0))
        assert needs == [Need(STEPS[0].digest, b"\x01"), Need(STEPS[1].digest, b"\x01")]
        assert job.tick(11.5) == []

    def test_all_deltas_on_disk_starts_training_at_once(self):
        job = Job(max_blob_bytes=10_000)
        ask_holding(job, VERSIONS[1].digest)
        effects = job.handle(DownloadStarted({one.digest: range(one.chunk_count) for one in STEPS[1:]}), 10.0)
        assert [type(effect) for effect in effects] == [SendMessage, StartTraining]

    def test_damaged_delta_downloads_the_whole_model(self):
        job = by_steps()
        assert job.handle(DownloadDamaged(), 20.0) == [WHOLE]
        assert job.state is JobState.DOWNLOADING

    def test_paused_delta_download_resumes_with_the_same_deltas(self):
        job = Job(max_blob_bytes=10_000)
        ask_holding(job, VERSIONS[1].digest)
        job.handle(DownloadStarted({}), 10.0)
        job.handle(OwnerPaused(), 20.0)
        assert arrive(job, STEP_BLOBS[1]) == []
        assert job.handle(OwnerResumed(), 20.0) == [StartDownload(STEPS[1:])]


class TestUselessDeltas:
    def test_useless_deltas_download_the_whole_model(self):
        job = by_steps()
        assert job.handle(TrainingFailed(KEY, FailReason.DOWNLOAD, "why"), 20.0) == [DropHeldModel("why"), WHOLE]
        job.handle(DownloadStarted({}), 20.0)
        *_, train = arrive(job, BLOBS[-1], 22.0)
        assert train == StartTraining(KEY, delta_request(), 12.0, DownloadPlan(VERSIONS[-1]))

    def test_useless_whole_model_after_deltas_fails_the_round(self):
        job = by_steps()
        job.handle(TrainingFailed(KEY, FailReason.DOWNLOAD, "why"), 20.0)
        job.handle(DownloadStarted({}), 20.0)
        arrive(job, BLOBS[-1], 22.0)
        assert replies(job.handle(TrainingFailed(KEY, FailReason.DOWNLOAD, "why"), 20.0)) == [
            Failed(FailReason.DOWNLOAD)
        ]

    @pytest.mark.parametrize("reason", [one for one in FailReason if one is not FailReason.DOWNLOAD], ids=str)
    def test_other_failure_with_deltas_fails_the_round(self, reason):
        assert replies(by_steps().handle(TrainingFailed(KEY, reason, "why"), 20.0)) == [Failed(reason)]

    def test_useless_deltas_in_a_pause_download_the_whole_model_after_it(self):
        job = by_steps()
        assert job.handle(OwnerPaused(), 20.0) == [PauseTraining()]
        assert job.handle(TrainingFailed(KEY, FailReason.DOWNLOAD, "why"), 20.0) == [DropHeldModel("why")]
        assert job.handle(OwnerResumed(), 30.0) == [WHOLE]

    def test_second_download_keeps_the_deadline(self):
        job = by_steps()
        job.handle(TrainingFailed(KEY, FailReason.DOWNLOAD, "why"), 20.0)
        job.handle(DownloadStarted({}), 20.0)
        assert replies(job.tick(310.0)) == [Failed(FailReason.DEADLINE)]

    def test_second_download_uses_chunks_of_the_newest_epoch(self):
        job = by_steps()
        recut = replace(VERSIONS[-1], chunk_bytes=50, chunk_count=5)
        ask_holding(job, "", replace(delta_request(), model=recut), epoch=2)
        assert job.handle(TrainingFailed(KEY, FailReason.DOWNLOAD, "why"), 20.0)[-1] == StartDownload((recut,))


class TestNewDeltas:
    """A restarted coordinator offers other deltas to the same model."""

    def test_same_deltas_continue_the_download(self):
        job = Job(max_blob_bytes=10_000)
        ask_holding(job, VERSIONS[1].digest)
        job.handle(DownloadStarted({}), 10.0)
        arrive(job, STEP_BLOBS[1])
        for second in range(13, 40):
            job.tick(float(second))
        shorter = replace(delta_request(), deltas=DELTAS[1:])
        assert replies(ask_holding(job, VERSIONS[1].digest, shorter, epoch=2, now=40.0)) == [Accept(10)]
        assert replies(job.tick(41.0)) == [Need(STEPS[2].digest, b"\x01")]

    @pytest.mark.parametrize(
        ("deltas", "blobs"), [((), (VERSIONS[-1],)), ((replace(DELTAS[1], base=VERSIONS[0].digest),), (STEPS[1],))]
    )
    def test_other_deltas_restart_the_download(self, deltas, blobs):
        job = Job(max_blob_bytes=10_000)
        ask_holding(job, VERSIONS[0].digest)
        job.handle(DownloadStarted({}), 10.0)
        arrive(job, STEP_BLOBS[0])
        effects = ask_holding(job, VERSIONS[0].digest, replace(delta_request(), deltas=deltas), epoch=2)
        assert (replies(effects), effects[1:]) == ([Accept(10)], [StartDownload(blobs)])
        assert not any(isinstance(effect, EndJob) for effect in effects)

    def test_other_deltas_in_a_pause_are_downloaded_after_it(self):
        job = Job(max_blob_bytes=10_000)
        ask_holding(job, VERSIONS[0].digest)
        job.handle(DownloadStarted({}), 10.0)
        job.handle(OwnerPaused(), 20.0)
        effects = ask_holding(job, VERSIONS[0].digest, replace(delta_request(), deltas=()), epoch=2)
        assert (replies(effects), len(effects)) == ([Accept(10)], 1)
        assert job.handle(OwnerResumed(), 30.0) == [WHOLE]

    def test_other_deltas_while_training_have_no_effect(self):
        job = by_steps()
        effects = ask_holding(job, VERSIONS[1].digest, replace(delta_request(), deltas=()), epoch=2)
        assert replies(effects) == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]


requests = st.sampled_from(
    [delta_request(), replace(delta_request(), deltas=()), replace(delta_request(), deltas=DELTAS[1:])]
)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), requests),
        st.tuples(st.just("blob"), st.sampled_from([*STEP_BLOBS, *BLOBS])),
        st.tuples(st.just("fail"), st.none()),
        st.tuples(st.just("damage"), st.none()),
        st.tuples(st.just("pause"), st.booleans()),
        st.tuples(st.just("reboot"), st.none()),
    ),
    max_size=30,
)


class Disk:
    """A fake device that keeps received chunks and the held version over reboots."""

    def __init__(self, held: str) -> None:
        self.held = held
        self.come: dict[str, set[int]] = {}
        self.job = Job(max_blob_bytes=10_000)
        self.trains: StartTraining | None = None
        self.ways: list[DownloadPlan] = []
        self.epoch = 0

    def move(self, what: str, detail: WorkRequest | bytes | bool | None) -> None:
        """Apply one event to the device."""
        if isinstance(detail, WorkRequest):
            self.epoch += 1
            envelope = envelope_of(detail, epoch=self.epoch)
            self.perform(self.job.handle(requested(envelope, TASKS, AdmissionDecision(True), self.held), 20.0))
        elif isinstance(detail, bytes):
            self.perform(arrive(self.job, detail, 20.0))
        elif what == "pause":
            self.perform(self.job.handle(OwnerPaused(), 20.0) if detail else self.job.handle(OwnerResumed(), 20.0))
        elif what == "fail" and self.trains is not None:
            self.perform(self.job.handle(TrainingFailed(self.trains.key, FailReason.DOWNLOAD, "led nowhere"), 20.0))
        elif what == "damage":
            self.come.clear()
            self.perform(self.job.handle(DownloadDamaged(), 20.0))
        elif what == "reboot":
            self.job, self.trains = Job(max_blob_bytes=10_000), None

    def perform(self, effects: list[Effect]) -> None:
        """Perform the effects and all that follow from them."""
        drive_job(self.job, effects, self, lambda: 20.0)

    def run_effect(self, effect: Effect) -> list[JobEvent]:
        """Perform one effect (EffectHandler)."""
        match effect:
            case StartDownload():
                wanted = {blob.digest for blob in effect.blobs}
                self.come = {digest: indices for digest, indices in self.come.items() if digest in wanted}
                return [DownloadStarted(self.come)]
            case WriteChunk():
                self.come.setdefault(effect.chunk.digest, set()).add(effect.chunk.index)
            case StartTraining():
                self.check(effect)
                self.trains = effect
                self.ways.append(effect.plan)
            case DropHeldModel():
                self.held = ""
            case EndJob():
                self.come, self.trains = {}, None
        return []

    def check(self, train: StartTraining) -> None:
        """The plan leads to the requested model, and all its chunks are here."""
        assert train.request.model == train.plan.model
        assert {blob.digest for blob in train.plan.blobs} <= self.come.keys()
        assert all(Bitmap(blob.chunk_count, self.come[blob.digest]).full for blob in train.plan.blobs)
        if train.plan.held:
            at = [one.digest for one in VERSIONS].index(train.plan.held)
            assert train.plan.held == self.held
            assert train.plan.steps == DELTAS[at:]


@given(st.sampled_from(["", *(one.digest for one in VERSIONS), "77" * 32]), moves)
def test_any_events_training_gets_a_complete_plan_to_the_requested_model(held, moves):
    """Requests with and without deltas, newer epochs, damage, pauses and reboots; at the end the device can train."""
    disk = Disk(held)
    for move in moves:
        disk.move(*move)
    disk.move("reboot", None)
    disk.move("ask", delta_request())
    for blob in (*STEP_BLOBS, BLOBS[-1]):
        disk.move("blob", blob)
    first = disk.ways[-1]
    disk.move("fail", None)
    disk.move("blob", BLOBS[-1])
    assert (disk.job.state, disk.ways[-1]) == (
        JobState.TRAINING if first.held else JobState.IDLE,
        DownloadPlan(VERSIONS[-1]),
    )
