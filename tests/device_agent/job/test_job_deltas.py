"""A job that comes to its model by steps from the version that the device holds, and what it does where that leads nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.download_plan import DownloadPlan
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
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.shared.wire.chunked_transfer import Bitmap
from fedpatch.shared.wire.messages import Accept, Failed, Need, Progress, WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase
from tests.device_agent.delta_jobs import BLOBS, DELTAS, STEP_BLOBS, STEPS, VERSIONS, arrive, ask, asked, by_steps
from tests.device_agent.jobs import KEY, said_back
from tests.support.specs import TASKS, said

WHOLE = StartDownload((VERSIONS[-1],))


class TestDownload:
    def test_of_steps_trains_once_all_of_them_are_here(self):
        """In whatever order their chunks come; a chunk of the whole model is none of them."""
        job = Job(max_blob_bytes=10_000)
        accept, fetch = ask(job, VERSIONS[0].digest)
        assert (said_back([accept]), fetch) == ([Accept(10)], StartDownload(STEPS))
        job.fetching({}, 10.0)
        assert arrive(job, BLOBS[-1]) == []
        assert all(
            isinstance(effect, WriteChunk) for blob in (STEP_BLOBS[2], STEP_BLOBS[0]) for effect in arrive(job, blob)
        )
        *_, begun, train = arrive(job, STEP_BLOBS[1], 13.0)
        assert said_back([begun]) == [Progress(JobPhase.TRAINING, 0, 1)]
        assert train == StartTraining(KEY, asked(), 3.0, DownloadPlan(VERSIONS[-1], VERSIONS[0].digest, DELTAS))

    def test_of_nothing_trains_at_once(self):
        """Who holds the model of the round, because it was trained from before, needs no byte of it."""
        job = Job(max_blob_bytes=10_000)
        assert ask(job, VERSIONS[-1].digest)[-1] == StartDownload(())
        _, train = job.fetching({}, 10.0)
        assert train == StartTraining(KEY, asked(), 0.0, DownloadPlan(VERSIONS[-1], VERSIONS[-1].digest))

    def test_asks_for_what_is_missing_of_each_step(self):
        """After one pause for all of them, as it would for the chunks of one blob."""
        job = Job(max_blob_bytes=10_000)
        ask(job, VERSIONS[0].digest)
        job.fetching({STEPS[0].digest: [1], STEPS[2].digest: [0]}, 10.0)
        assert job.next_deadline() == 11.0
        needs = said_back(job.tick(11.0))
        assert needs == [Need(STEPS[0].digest, b"\x01"), Need(STEPS[1].digest, b"\x01")]
        assert job.tick(11.5) == []

    def test_that_was_complete_before_a_reboot_trains_at_once(self):
        """All that had come is on the disk."""
        job = Job(max_blob_bytes=10_000)
        ask(job, VERSIONS[1].digest)
        effects = job.fetching({one.digest: range(one.chunk_count) for one in STEPS[1:]}, 10.0)
        assert [type(effect) for effect in effects] == [SendMessage, StartTraining]

    def test_that_is_damaged_takes_the_whole_model(self):
        """A disk that spoils blobs is given no further chance to spoil a small one."""
        job = by_steps()
        assert job.damaged() == [WHOLE]
        assert job.state is JobState.DOWNLOADING

    def test_is_stopped_by_a_pause_and_gone_on_with(self):
        """With the same steps."""
        job = Job(max_blob_bytes=10_000)
        ask(job, VERSIONS[1].digest)
        job.fetching({}, 10.0)
        job.pause()
        assert arrive(job, STEP_BLOBS[1]) == []
        assert job.go_on(20.0) == [StartDownload(STEPS[1:])]


class TestStepsThatLeadNowhere:
    def test_are_answered_by_the_whole_model_in_the_same_round(self):
        """What was held is forgotten, and the coordinator hears of no failure."""
        job = by_steps()
        assert job.training_failed(KEY, FailReason.DOWNLOAD, "why") == [DropHeldModel("why"), WHOLE]
        job.fetching({}, 20.0)
        *_, train = arrive(job, BLOBS[-1], 22.0)
        assert train == StartTraining(KEY, asked(), 12.0, DownloadPlan(VERSIONS[-1]))

    def test_are_so_once(self):
        """A whole model that cannot be used either ends the round."""
        job = by_steps()
        job.training_failed(KEY, FailReason.DOWNLOAD, "why")
        job.fetching({}, 20.0)
        arrive(job, BLOBS[-1], 22.0)
        assert said_back(job.training_failed(KEY, FailReason.DOWNLOAD, "why")) == [Failed(FailReason.DOWNLOAD)]

    @pytest.mark.parametrize("reason", [one for one in FailReason if one is not FailReason.DOWNLOAD], ids=str)
    def test_are_no_reason_where_something_else_failed(self, reason):
        """Training that fails would fail with the whole model too."""
        assert said_back(by_steps().training_failed(KEY, reason, "why")) == [Failed(reason)]

    def test_are_found_in_a_pause(self):
        """Then the model is fetched once it is over."""
        job = by_steps()
        assert job.pause() == [PauseTraining()]
        assert job.training_failed(KEY, FailReason.DOWNLOAD, "why") == [DropHeldModel("why")]
        assert job.go_on(30.0) == [WHOLE]

    def test_leave_the_deadline_where_it_was(self):
        """The round does not wait for the second download."""
        job = by_steps()
        job.training_failed(KEY, FailReason.DOWNLOAD, "why")
        job.fetching({}, 20.0)
        assert said_back(job.tick(310.0)) == [Failed(FailReason.DEADLINE)]

    def test_bring_the_model_in_the_pieces_of_the_newest_epoch(self):
        """While it trained, the coordinator may have come back behind a broker with another limit."""
        job = by_steps()
        recut = replace(VERSIONS[-1], chunk_bytes=50, chunk_count=5)
        ask(job, "", replace(asked(), model=recut), epoch=2)
        assert job.training_failed(KEY, FailReason.DOWNLOAD, "why")[-1] == StartDownload((recut,))


class TestNewerEpoch:
    """The coordinator is back, and names other steps to the same model."""

    def test_with_the_same_way_goes_on(self):
        """What has come stays, and the rest is asked for soon."""
        job = Job(max_blob_bytes=10_000)
        ask(job, VERSIONS[1].digest)
        job.fetching({}, 10.0)
        arrive(job, STEP_BLOBS[1])
        for second in range(13, 40):
            job.tick(float(second))
        shorter = replace(asked(), deltas=DELTAS[1:])
        assert said_back(ask(job, VERSIONS[1].digest, shorter, epoch=2, now=40.0)) == [Accept(10)]
        assert said_back(job.tick(41.0)) == [Need(STEPS[2].digest, b"\x01")]

    @pytest.mark.parametrize(
        ("deltas", "blobs"), [((), (VERSIONS[-1],)), ((replace(DELTAS[1], base=VERSIONS[0].digest),), (STEPS[1],))]
    )
    def test_with_another_way_takes_that(self, deltas, blobs):
        """The steps that were on their way may be lost."""
        job = Job(max_blob_bytes=10_000)
        ask(job, VERSIONS[0].digest)
        job.fetching({}, 10.0)
        arrive(job, STEP_BLOBS[0])
        effects = ask(job, VERSIONS[0].digest, replace(asked(), deltas=deltas), epoch=2)
        assert (said_back(effects), effects[1:]) == ([Accept(10)], [StartDownload(blobs)])
        assert not any(isinstance(effect, EndJob) for effect in effects)

    def test_with_another_way_in_a_pause_takes_that_afterwards(self):
        """Nothing is fetched before."""
        job = Job(max_blob_bytes=10_000)
        ask(job, VERSIONS[0].digest)
        job.fetching({}, 10.0)
        job.pause()
        assert said_back(ask(job, VERSIONS[0].digest, replace(asked(), deltas=()), epoch=2)) == [Accept(10)]
        assert job.go_on(30.0) == [WHOLE]

    def test_is_of_no_account_while_it_trains(self):
        """The model is here."""
        job = by_steps()
        effects = ask(job, VERSIONS[1].digest, replace(asked(), deltas=()), epoch=2)
        assert said_back(effects) == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]


requests = st.sampled_from([asked(), replace(asked(), deltas=()), replace(asked(), deltas=DELTAS[1:])])
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
    """A device's shell: what has come is kept over reboots, and so is the version that is held."""

    def __init__(self, held: str) -> None:
        self.held = held
        self.come: dict[str, set[int]] = {}
        self.job = Job(max_blob_bytes=10_000)
        self.trains: StartTraining | None = None
        self.ways: list[DownloadPlan] = []
        self.epoch = 0

    def move(self, what: str, detail: WorkRequest | bytes | bool | None) -> None:
        """One of the things that happen to a device."""
        if isinstance(detail, WorkRequest):
            self.epoch += 1
            envelope = said(detail, epoch=self.epoch)
            self.perform(self.job.on_request(envelope, TASKS, AdmissionDecision(True), 20.0, self.held))
        elif isinstance(detail, bytes):
            self.perform(arrive(self.job, detail, 20.0))
        elif what == "pause":
            self.perform(self.job.pause() if detail else self.job.go_on(20.0))
        elif what == "fail" and self.trains is not None:
            self.perform(self.job.training_failed(self.trains.key, FailReason.DOWNLOAD, "led nowhere"))
        elif what == "damage":
            self.come.clear()
            self.perform(self.job.damaged())
        elif what == "reboot":
            self.job, self.trains = Job(max_blob_bytes=10_000), None

    def perform(self, effects: list[Effect]) -> None:
        """All of them, and those that follow."""
        for effect in effects:
            match effect:
                case StartDownload():
                    wanted = {blob.digest for blob in effect.blobs}
                    self.come = {digest: indices for digest, indices in self.come.items() if digest in wanted}
                    self.perform(self.job.fetching(self.come, 20.0))
                case WriteChunk():
                    self.come.setdefault(effect.chunk.digest, set()).add(effect.chunk.index)
                case StartTraining():
                    self.check(effect)
                    self.trains = effect
                    self.ways.append(effect.way)
                case DropHeldModel():
                    self.held = ""
                case EndJob():
                    self.come, self.trains = {}, None

    def check(self, train: StartTraining) -> None:
        """What training is given leads to the model that was asked for, and all of it is here."""
        assert train.request.model == train.way.model
        assert {blob.digest for blob in train.way.blobs} <= self.come.keys()
        assert all(Bitmap(blob.chunk_count, self.come[blob.digest]).full for blob in train.way.blobs)
        if train.way.held:
            at = [one.digest for one in VERSIONS].index(train.way.held)
            assert train.way.held == self.held
            assert train.way.steps == DELTAS[at:]


@given(st.sampled_from(["", *(one.digest for one in VERSIONS), "77" * 32]), moves)
def test_whatever_happens_training_is_given_a_whole_way_to_the_model_that_was_asked_for(held, moves):
    """Requests with and without steps, in newer epochs, damage, pauses, reboots; and in the end the device can train."""
    disk = Disk(held)
    for move in moves:
        disk.move(*move)
    disk.move("reboot", None)
    disk.move("ask", asked())
    for blob in (*STEP_BLOBS, BLOBS[-1]):
        disk.move("blob", blob)
    first = disk.ways[-1]
    disk.move("fail", None)
    disk.move("blob", BLOBS[-1])
    assert (disk.job.state, disk.ways[-1]) == (
        JobState.TRAINING if first.held else JobState.IDLE,
        DownloadPlan(VERSIONS[-1]),
    )
