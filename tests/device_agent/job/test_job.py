"""The job as a state machine: requests and answers, each state, pauses, newer epochs, and downloads by deltas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import (
    ContinueTraining,
    DropHeldModel,
    Effect,
    EndJob,
    JobState,
    PauseTraining,
    ReportFailure,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
    StopDownload,
    StopTraining,
    WriteChunk,
)
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    CoordinatorStarted,
    DownloadDamaged,
    DownloadStarted,
    EffectFailed,
    JobEvent,
    LinkRestored,
    MessageReceived,
    OwnerAbandoned,
    OwnerPaused,
    OwnerResumed,
    TrainingFailed,
    TrainingProgressed,
    UpdateRestored,
    UpdateTrained,
    decline,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.same_work import continues
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunked_transfer import Bitmap, SendChunk, cut
from fedpatch.shared.wire.messages import (
    COORDINATOR_FEATURES,
    Accept,
    Ack,
    Cancel,
    Committed,
    Decline,
    Failed,
    Grant,
    JobStatus,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import (
    Condition,
    DeclineReason,
    FailCause,
    FailReason,
    JobPhase,
    RefuseReason,
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
    DIGEST,
    IN_EACH_STATE,
    KEY,
    REQUEST,
    ask,
    downloading,
    here,
    replies,
    requested,
    training,
    uploading,
)
from tests.support.specs import CHUNK_BYTES, RUN, SCHEMA, TASKS, envelope_of, model, run_spec, update


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


class TestTraining:
    def test_progress_is_sent_each_15_s_until_the_deadline(self):
        job = training()
        seen = [replies(job.handle(TrainingProgressed(KEY, 3, 5), now)) for now in (20.0, 27.0, 40.0, 50.0)]
        sent = [Progress(JobPhase.TRAINING, 3, 5)]
        assert seen == [[], sent, [], sent]
        assert job.next_deadline() == 310.0
        assert job.tick(309.9) == []

    def test_trained_update_is_spooled_before_it_is_offered(self):
        job = training()
        spool, offer = job.handle(UpdateTrained(KEY, update()), 20.0)
        assert (spool, replies([offer])) == (SpoolUpdate(KEY, update(), REQUEST), [Offer(update())])
        assert job.status() == JobStatus(RUN, 1, 1, JobPhase.UPLOADING)

    @pytest.mark.parametrize("cause", [UNSET, FailCause.MEMORY])
    def test_training_fails_for_a_known_cause_sends_the_cause(self, cause):
        effects = training().handle(TrainingFailed(KEY, FailReason.TRAINING, "9 GB", cause), 20.0)
        assert replies(effects) == [Failed(FailReason.TRAINING, cause=cause)]

    def test_training_fails_sends_reason_without_detail(self):
        effects = training().handle(TrainingFailed(KEY, FailReason.NOT_FINITE, "secret.weight holds nan"), 20.0)
        assert replies(effects) == [Failed(FailReason.NOT_FINITE)]
        assert [type(effect) for effect in effects] == [SendMessage, StopTraining, EndJob]
        assert effects[-1] == EndJob("gave up: not_finite: secret.weight holds nan", gave_up=True)

    @pytest.mark.parametrize("other", [{"run": "run-2"}, {"round": 2}, {"epoch": 0}, {"task": "mnist"}], ids=str)
    def test_answers_about_another_job_are_ignored(self, other):
        """The training process may report late, on the same round from before the coordinator's restart."""
        job = training()
        key = replace(KEY, **other)
        assert job.handle(UpdateTrained(key, update()), 20.0) == []
        assert job.handle(TrainingFailed(key, FailReason.TRAINING, ""), 20.0) == []
        assert job.handle(TrainingProgressed(key, 3, 5), 20.0) == []
        assert job.state is JobState.TRAINING


class TestUpload:
    def grant(self, have: bytes = b"\x00") -> Grant:
        """A grant for two chunks at a time."""
        return Grant(DIGEST, 2, have)

    def test_grant_and_ack_send_chunks_within_the_window(self):
        job = uploading()
        assert job.handle(MessageReceived(envelope_of(self.grant())), 21.0) == [SendChunk(0), SendChunk(1)]
        assert job.handle(MessageReceived(envelope_of(Ack(DIGEST, b"\x01"))), 22.0) == [SendChunk(2)]

    @pytest.mark.parametrize("back", [LinkRestored(), CoordinatorStarted()], ids=lambda event: type(event).__name__)
    def test_quiet_upload_is_offered_again_after_a_while_and_when_the_other_side_is_back(self, back):
        job = uploading()
        assert job.next_deadline() == 23.0
        assert replies(job.tick(23.0)) == [Offer(update())]
        job.handle(back, 24.0)
        assert replies(job.tick(24.0)) == [Offer(update())]
        assert job.handle(MessageReceived(envelope_of(RetryAfter(DIGEST, 9.0))), 25.0) == []
        assert (job.tick(33.9), replies(job.tick(34.0))) == ([], [Offer(update())])

    @pytest.mark.parametrize(
        ("end", "outcome"),
        [
            (Committed(DIGEST, 40.0), "committed"),
            (Refused(DIGEST, RefuseReason.LATE, "too bad"), "refused: late too bad"),
            (Refused(DIGEST, RefuseReason.LATE), "refused: late"),
            (Cancel("late"), "cancelled: late"),
        ],
    )
    def test_final_message_ends_the_job(self, end, outcome):
        job = uploading()
        rest_s, committed = (40.0, KEY) if outcome == "committed" else (0.0, None)
        assert job.handle(MessageReceived(envelope_of(end)), 21.0) == [
            EndJob(outcome, rest_s=rest_s, committed=committed)
        ]
        assert (job.state, job.status(), job.next_deadline()) == (JobState.IDLE, None, None)
        assert job.tick(1e6) == []

    @pytest.mark.parametrize(
        "body",
        [
            Committed("00" * 32),
            Refused("00" * 32, RefuseReason.LATE),
            Ack("00" * 32, b""),
            RetryAfter("00" * 32, 1.0),
            Need(DIGEST, b"\x01"),
        ],
        ids=lambda body: type(body).__name__,
    )
    def test_answer_with_another_digest_is_ignored(self, body):
        job = uploading()
        assert job.handle(MessageReceived(envelope_of(body)), 21.0) == []
        assert job.state is JobState.UPLOADING

    def test_restored_update_is_offered(self):
        job = Job(max_blob_bytes=10_000)
        job.handle(UpdateRestored(KEY, update()), 5.0)
        assert job.status() == JobStatus(RUN, 1, 1, JobPhase.UPLOADING)
        assert replies(job.tick(5.0)) == [Offer(update())]
        assert job.handle(MessageReceived(envelope_of(Committed(DIGEST))), 6.0) == [EndJob("committed", committed=KEY)]

    def test_bitmap_of_wrong_length_raises_wire_error(self):
        job = uploading()
        with pytest.raises(WireError):
            job.handle(MessageReceived(envelope_of(self.grant(b""))), 21.0)
        assert job.handle(MessageReceived(envelope_of(self.grant())), 22.0) == [SendChunk(0), SendChunk(1)]


class TestUnexpectedMessages:
    """Messages that come at the wrong time or are meant for another job change nothing."""

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize("other", [{"run": "run-2"}, {"round_number": 2}, {"epoch": 0}, {"epoch": 2}], ids=str)
    def test_message_to_another_job_is_ignored(self, make, other):
        job = make()
        state = job.state
        for body in (Cancel("late"), Committed(DIGEST), Refused(DIGEST, RefuseReason.STALE_EPOCH)):
            assert job.handle(MessageReceived(envelope_of(body, **other)), 21.0) == []
        assert job.state is state

    @pytest.mark.parametrize("make", [downloading, training], ids=lambda make: make.__name__)
    def test_upload_message_before_upload_is_ignored(self, make):
        job = make()
        for body in (Committed(DIGEST), Grant(DIGEST, 4, b"\x00")):
            assert job.handle(MessageReceived(envelope_of(body)), 13.0) == []
        assert EndJob("cancelled: late") in job.handle(MessageReceived(envelope_of(Cancel("late"))), 13.0)
        assert job.state is JobState.IDLE

    def test_message_of_a_device_is_ignored(self):
        assert uploading().handle(MessageReceived(envelope_of(Accept(10))), 21.0) == []

    def test_events_while_idle_have_no_effect(self):
        """Events of a job that has ended have no effect either; a failed effect is only logged."""
        job = Job(max_blob_bytes=10_000)
        for event in (
            MessageReceived(envelope_of(Cancel("late"))),
            ChunkReceived(cut(BLOB, model(), 0)),
            DownloadStarted({model().digest: range(3)}),
            DownloadDamaged(),
            TrainingProgressed(KEY, 1, 2),
            UpdateTrained(KEY, update()),
            TrainingFailed(KEY, FailReason.TRAINING, ""),
            OwnerAbandoned(""),
        ):
            assert job.handle(event, 1.0) == []
        assert job.handle(EffectFailed(FailReason.STORAGE, "the disk"), 1.0) == [ReportFailure("the disk")]
        job.handle(LinkRestored(), 1.0)
        assert (job.tick(1e6), job.next_deadline(), job.status()) == ([], None, None)


class TestRequest:
    def test_new_request_is_accepted_and_downloaded(self):
        job = Job(max_blob_bytes=10_000)
        effects = ask(job, 2, epoch=3)
        assert effects == [SendMessage(envelope_of(Accept(10), 2, epoch=3, id=1)), StartDownload((model(),))]
        assert job.status() == JobStatus(RUN, 3, 2, JobPhase.DOWNLOADING)

    def test_repeated_while_downloading_repeats_accept(self):
        job = downloading()
        assert replies(ask(job, accept=False)) == [Accept(10)]
        assert job.state is JobState.DOWNLOADING

    def test_repeated_while_training_repeats_accept_and_progress(self):
        job = training()
        assert replies(ask(job, accept=False)) == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]
        job.handle(TrainingProgressed(KEY, 3, 5), 20.0)
        again = ask(job)
        assert replies(again) == [Accept(10), Progress(JobPhase.TRAINING, 3, 5)]
        first, second = (effect.envelope.id for effect in again if isinstance(effect, SendMessage))
        assert second == first + 1
        assert job.state is JobState.TRAINING

    def test_repeated_while_uploading_sends_nothing(self):
        assert ask(uploading()) == []

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize("newer", [{"round_number": 2}, {"round_number": 2, "epoch": 2}, {"run": "run-2"}], ids=str)
    def test_newer_request_replaces_the_job(self, make, newer):
        job = make()
        was_training = job.state is JobState.TRAINING
        effects = ask(job, **newer)
        assert [type(effect) for effect in effects] == [
            *([StopTraining] * was_training),
            EndJob,
            SendMessage,
            StartDownload,
        ]
        assert EndJob("superseded") in effects
        assert job.state is JobState.DOWNLOADING

    @pytest.mark.parametrize("older", [{"round_number": 4, "epoch": 2}, {"round_number": 9, "epoch": 1}], ids=str)
    def test_older_request_is_ignored(self, older):
        job = Job(max_blob_bytes=10_000)
        ask(job, 5, epoch=2)
        assert ask(job, **older) == []
        assert job.status() == JobStatus(RUN, 2, 5, JobPhase.DOWNLOADING)

    @pytest.mark.parametrize(
        "end", [Committed(DIGEST), Refused(DIGEST, RefuseReason.NOT_FINITE)], ids=lambda e: type(e).__name__
    )
    def test_request_for_ended_job_is_ignored(self, end):
        job = uploading()
        job.handle(MessageReceived(envelope_of(end)), 21.0)
        assert ask(job) == []
        assert job.state is JobState.IDLE
        assert replies(ask(job, 2)) == [Accept(10)]

    @pytest.mark.parametrize(
        "older",
        [
            {"round_number": 5, "epoch": 2},
            {"round_number": 4, "epoch": 2},
            {"round_number": 9, "epoch": 1},
            {"round_number": 3, "epoch": 1},
        ],
        ids=str,
    )
    def test_older_round_of_a_coordinator_that_was_restored_from_a_backup_is_accepted(self, older):
        job = Job(max_blob_bytes=10_000)
        ask(job, 5, epoch=2)
        job.handle(MessageReceived(envelope_of(Cancel("late"), 5, epoch=2)), 21.0)
        assert ask(job, **older) == []
        job.handle(CoordinatorStarted(), 22.0)
        assert replies(ask(job, **older)) == [Accept(10)]
        assert ask(job, older["round_number"] - 1, epoch=older["epoch"]) == []

    def test_job_is_kept_from_older_requests_that_arrive_after_a_coordinator_has_started(self):
        job = Job(max_blob_bytes=10_000)
        ask(job, 5, epoch=2)
        job.handle(CoordinatorStarted(), 21.0)
        assert ask(job, 4, epoch=2) == []
        job.handle(MessageReceived(envelope_of(Cancel("late"), 5, epoch=2)), 22.0)
        assert replies(ask(job, 4, epoch=2)) == [Accept(10)]

    def test_older_rounds_are_accepted_after_a_restore_though_a_later_round_was_declined(self):
        job = Job(max_blob_bytes=10_000)
        ask(job, 6, epoch=2)
        job.handle(MessageReceived(envelope_of(Cancel("late"), 6, epoch=2)), 21.0)
        job.handle(requested(envelope_of(REQUEST, 9, epoch=2), TASKS, AdmissionDecision(False, "on battery")), 21.0)
        job.handle(CoordinatorStarted(), 22.0)
        for number in (5, 6):
            assert replies(ask(job, number, epoch=2)) == [Accept(10)]
            job.handle(MessageReceived(envelope_of(Cancel("late"), number, epoch=2)), 23.0)
        assert replies(ask(job, 9, epoch=2)) == [Accept(10)]

    def test_request_before_task_is_loaded_is_not_answered(self):
        """The request will be sent again; a decline for lack of tasks would count against the device."""
        assert Job(max_blob_bytes=10_000).handle(requested(envelope_of(REQUEST), ()), 10.0) == []


class TestDecline:
    @pytest.mark.parametrize(
        ("request_", "accept", "reason", "words"),
        [
            (replace(REQUEST, schema="00" * 32), True, "schema_mismatch", f"has {'00' * 32}, this device {SCHEMA};"),
            (replace(REQUEST, schema="00" * 32), True, "schema_mismatch", "the same task version"),
            (replace(REQUEST, encoding="morse"), True, "unsupported", "'morse'"),
            (replace(REQUEST, model=replace(model(), encoding="morse")), True, "unsupported", "'morse'"),
            (replace(REQUEST, model=replace(model(), raw_bytes=10_001)), True, "unsupported", "limit"),
            (REQUEST, False, "unwilling", "on battery"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_decline_names_first_reason(self, request_, accept, reason, words):
        """A lasting reason comes before a temporary one; no work begins."""
        job = Job(max_blob_bytes=10_000)
        effects = job.handle(requested(envelope_of(request_), TASKS, AdmissionDecision(accept, "on battery")), 10.0)
        [body] = replies(effects)
        assert isinstance(body, Decline)
        assert (len(effects), body.reason, job.state) == (1, reason, JobState.IDLE)
        assert words in body.detail

    @pytest.mark.parametrize(
        ("installed", "listed"),
        [
            (["mnist", "cifar10"], "(here: mnist, cifar10)"),
            ([f"task-{number:02}-{'x' * 50}" for number in range(40)], "(here: task-00"),
        ],
        ids=["two", "more than a message holds"],
    )
    def test_unknown_task_decline_lists_installed_tasks(self, installed, listed):
        tasks = tuple(replace(TASKS[0], task=task) for task in installed)
        [body] = replies(Job(max_blob_bytes=1).handle(requested(envelope_of(REQUEST), tasks), 0.0))
        assert isinstance(body, Decline)
        assert body.reason == "unknown_task"
        assert "'digits' is not installed" in body.detail
        assert listed in body.detail
        assert len(body.detail) <= 500

    def test_no_examples_declines_for_too_little_data(self):
        none = (replace(TASKS[0], num_examples=0),)
        [body] = replies(Job(max_blob_bytes=10_000).handle(requested(envelope_of(REQUEST), none), 0.0))
        assert body == Decline(DeclineReason.TOO_LITTLE_DATA, "no training examples here")

    def test_single_example_is_enough_to_accept(self):
        one = (replace(TASKS[0], num_examples=1),)
        accept, *_ = replies(Job(max_blob_bytes=10_000).handle(requested(envelope_of(REQUEST), one), 0.0))
        assert accept == Accept(1)

    @pytest.mark.parametrize(
        ("reason", "replaced"),
        [
            (DeclineReason.STORAGE, DeclineReason.UNWILLING),
            (DeclineReason.PRIVATE_POLICY, DeclineReason.UNSUPPORTED),
            (DeclineReason.PLAN_LIMIT, DeclineReason.UNSUPPORTED),
            (DeclineReason.INSECURE_REQUEST, DeclineReason.UNSUPPORTED),
            (DeclineReason.SECURE_TERMS, DeclineReason.UNSUPPORTED),
            (DeclineReason.PRIVACY_SPENT, DeclineReason.UNSUPPORTED),
            (DeclineReason.PRIVACY_REQUIRED, DeclineReason.UNSUPPORTED),
        ],
        ids=str,
    )
    def test_decline_reason_unknown_to_the_coordinator_is_replaced(self, reason, replaced):
        """A coordinator names the newer reasons that it understands in the request's features."""
        decision = decline(reason, "no")
        declines = [
            replies(Job(max_blob_bytes=10_000).handle(requested(envelope_of(request_), decision=decision), 0.0))
            for request_ in (replace(REQUEST, features=COORDINATOR_FEATURES), REQUEST)
        ]
        assert declines == [[Decline(reason, "no")], [Decline(replaced, "no")]]

    def test_preference_decline_names_condition_and_retry_time(self):
        """The coordinator does not ask again too early."""
        verdict = AdmissionDecision(False, "z" * 600, Condition.QUIET_HOURS, 1800.0)
        effects = Job(max_blob_bytes=10_000).handle(requested(envelope_of(REQUEST), TASKS, verdict), 10.0)
        expected = Decline(DeclineReason.UNWILLING, "z" * 500, Condition.QUIET_HOURS, 1800.0)
        assert replies(effects) == [expected]

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    def test_request_of_a_later_version_is_declined_and_the_job_continues(self, make):
        job = make()
        state = job.state
        asked = envelope_of(REQUEST, 7, run="run-2", epoch=3, task="mnist")
        [answer] = job.decline_unknown(asked, "z" * 600)
        assert isinstance(answer, SendMessage)
        declined = Decline(DeclineReason.UNSUPPORTED, "z" * 500)
        assert answer.envelope == replace(asked, body=declined, id=answer.envelope.id)
        assert (job.key, job.state) == (KEY, state)

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    def test_decline_leaves_running_job_as_it_is(self, make):
        job = make()
        state = job.state
        assert [type(effect) for effect in ask(job, 1, run="run-2", accept=False)] == [SendMessage]
        assert (job.key, job.state) == (KEY, state)


NO = Decline(DeclineReason.UNWILLING, "no")


class TestDeclinedRequest:
    def test_declined_request_stays_declined(self):
        """The coordinator no longer expects the device in this round; the decline may have been lost."""
        job = Job(max_blob_bytes=10_000)
        assert replies(ask(job, accept=False)) == [NO]
        assert replies(ask(job, accept=True)) == replies(ask(job, accept=True)) == [NO]
        assert job.state is JobState.IDLE

    @pytest.mark.parametrize("newer", [{"round_number": 2}, {"epoch": 2}, {"run": "run-2"}], ids=str)
    def test_declined_request_is_decided_again_in_newer_round_or_epoch(self, newer):
        job = Job(max_blob_bytes=10_000)
        ask(job, accept=False)
        assert replies(ask(job, **newer)) == [Accept(10)]

    def test_lasting_decline_is_repeated_unchanged(self):
        """Even if the task's data or version changed meanwhile: the next round's request gets a new answer."""
        job = Job(max_blob_bytes=10_000)
        none = (replace(TASKS[0], num_examples=0),)
        [first] = replies(job.handle(requested(envelope_of(REQUEST), none), 10.0))
        assert replies(ask(job)) == [first]

    def test_decline_supersedes_older_requests(self):
        """A late request of an earlier round or epoch gets no answer."""
        job = Job(max_blob_bytes=10_000)
        ask(job, 2, accept=False)
        assert ask(job, 1) == []
        assert ask(job, 7, epoch=0) == []

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    def test_decline_beside_job_of_another_run_changes_neither(self, make):
        job = make()
        for _ in range(2):
            assert replies(ask(job, run="run-2", accept=False)) == [NO]
        assert replies(ask(job, run="run-2")) == [NO]
        assert job.key == KEY


class TestFailedRequest:
    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize("reason", [FailReason.TRAINING, FailReason.STORAGE], ids=str)
    def test_failed_is_repeated_for_the_same_request(self, make, reason):
        job = make()
        job.handle(EffectFailed(reason, "as it happens"), 20.0)
        assert [replies(ask(job)) for _ in range(2)] == [[Failed(reason)]] * 2
        assert job.state is JobState.IDLE

    def test_failed_at_deadline_is_repeated(self):
        job = training()
        job.tick(310.0)
        assert replies(ask(job)) == [Failed(FailReason.DEADLINE)]

    def test_failed_job_is_accepted_in_newer_epoch(self):
        job = training()
        job.handle(EffectFailed(FailReason.TRAINING, ""), 20.0)
        assert [type(effect) for effect in ask(job, epoch=2)][1:] == [StartDownload]

    def test_failed_after_takeover_is_repeated_in_new_epoch_only(self):
        job = training()
        ask(job, epoch=2)
        job.handle(EffectFailed(FailReason.TRAINING, ""), 20.0)
        assert replies(ask(job, epoch=2)) == [Failed(FailReason.TRAINING)]
        assert ask(job) == []

    def test_failed_and_declined_are_both_remembered(self):
        job = downloading()
        job.handle(EffectFailed(FailReason.DOWNLOAD, ""), 20.0)
        ask(job, run="run-2", accept=False)
        assert replies(ask(job)) == [Failed(FailReason.DOWNLOAD)]
        assert replies(ask(job, run="run-2")) == [NO]

    def test_failed_is_forgotten_after_next_accept(self):
        job = training()
        job.handle(EffectFailed(FailReason.TRAINING, ""), 20.0)
        ask(job, 2)
        assert ask(job) == []

    def test_failed_restored_update_is_repeated(self):
        job = Job(max_blob_bytes=10_000)
        job.handle(UpdateRestored(KEY, update(), REQUEST), 5.0)
        job.handle(EffectFailed(FailReason.STORAGE, ""), 20.0)
        assert replies(ask(job)) == [Failed(FailReason.STORAGE)]


questions = st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())


@given(st.lists(questions, max_size=40))
def test_any_requests_and_failures_never_change_a_final_answer(asked):
    """For any requests of a run, willing or not, and any failures: after `decline` or `failed` only the same may follow."""
    job = Job(max_blob_bytes=10_000)
    final: dict[tuple, Decline | Failed] = {}
    for epoch, number, accept, fails in asked:
        question = (epoch, number)
        effects = ask(job, number, epoch=epoch, accept=accept)
        answers = replies(effects)
        if question in final:
            assert answers in ([], [final[question]])
            assert not [effect for effect in effects if isinstance(effect, StartDownload | EndJob | StopTraining)]
        for answer in answers:
            if isinstance(answer, Decline | Failed):
                final[question] = answer
        if fails and job.key is not None:
            key = job.key
            assert replies(job.handle(EffectFailed(FailReason.TRAINING, ""), 20.0)) == [Failed(FailReason.TRAINING)]
            final[key.epoch, key.round] = Failed(FailReason.TRAINING)


NOTHING_YET = Bitmap(4).to_bytes()


def sends(effects: list[Effect]) -> list[int]:
    """Indices of the chunks that are sent."""
    return [effect.index for effect in effects if isinstance(effect, SendChunk)]


class TestPause:
    def test_paused_download_stops_and_resumes_with_the_rest(self):
        job = downloading()
        job.handle(ChunkReceived(cut(BLOB, model(), 0)), 11.0)
        assert job.handle(OwnerPaused(), 20.0) == [StopDownload()]
        assert job.handle(ChunkReceived(cut(BLOB, model(), 1)), 12.0) == []
        assert job.tick(60.0) == []
        assert job.handle(OwnerResumed(), 61.0) == [StartDownload((model(),))]
        here(job, frozenset({0}), 61.0)
        for index in (1, 2):
            job.handle(ChunkReceived(cut(BLOB, model(), index)), 62.0)
        assert job.state is JobState.TRAINING

    def test_paused_training_waits_and_reports_when_resumed(self):
        job = training()
        assert job.handle(OwnerPaused(), 20.0) == [PauseTraining()]
        go_on, *rest = job.handle(OwnerResumed(), 60.0)
        assert go_on == ContinueTraining()
        assert replies(rest) == [Progress(JobPhase.TRAINING, 0, 1)]

    def test_paused_upload_sends_nothing(self):
        job = uploading()
        assert job.handle(OwnerPaused(), 20.0) == []
        for body in (Grant(DIGEST, 4, NOTHING_YET), Ack(DIGEST, NOTHING_YET), RetryAfter(DIGEST, 1.0)):
            assert job.handle(MessageReceived(envelope_of(body)), 21.0) == []
        assert job.next_deadline() is None
        assert job.tick(500.0) == []
        assert replies(job.handle(OwnerResumed(), 501.0)) == [Offer(update())]
        assert sends(job.handle(MessageReceived(envelope_of(Grant(DIGEST, 4, NOTHING_YET))), 502.0)) == [0, 1, 2, 3]

    def test_update_trained_in_a_pause_is_offered_after_it(self):
        job = training()
        job.handle(OwnerPaused(), 20.0)
        assert job.handle(UpdateTrained(KEY, update()), 20.0) == [SpoolUpdate(KEY, update(), REQUEST)]
        assert replies(job.handle(OwnerResumed(), 60.0)) == [Offer(update())]

    def test_paused_upload_accepts_newer_epoch_and_stays_paused(self):
        job = uploading()
        job.handle(OwnerPaused(), 20.0)
        assert [type(body).__name__ for body in replies(ask(job, epoch=2))] == ["Accept"]
        assert job.tick(60.0) == []
        assert replies(job.handle(OwnerResumed(), 61.0)) == [Offer(update())]

    @pytest.mark.parametrize("make", [downloading, training])
    def test_pause_leaves_the_deadline(self, make):
        job = make()
        job.handle(OwnerPaused(), 20.0)
        assert job.next_deadline() == 310.0
        assert replies(job.tick(310.0)) == [Failed(FailReason.DEADLINE)]

    @pytest.mark.parametrize("make", IN_EACH_STATE)
    def test_job_ends_in_a_pause_ends_the_pause(self, make):
        job = make()
        job.handle(OwnerPaused(), 20.0)
        assert isinstance(job.handle(MessageReceived(envelope_of(Cancel("late"))), 30.0)[-1], EndJob)
        assert not job.paused
        assert job.handle(OwnerResumed(), 31.0) == []
        assert any(isinstance(effect, StartDownload) for effect in ask(job, 2, now=32.0))

    @pytest.mark.parametrize("make", IN_EACH_STATE)
    def test_second_pause_or_resume_has_no_effect(self, make):
        job = make()
        assert job.handle(OwnerResumed(), 30.0) == []
        job.handle(OwnerPaused(), 20.0)
        assert job.handle(OwnerPaused(), 20.0) == []
        job.handle(OwnerResumed(), 31.0)
        assert job.handle(OwnerResumed(), 32.0) == []

    def test_pause_while_idle_has_no_effect(self):
        job = Job(max_blob_bytes=10_000)
        assert job.handle(OwnerPaused(), 20.0) == []
        assert not job.paused


class TestClearance:
    """A job whose owner clears each update before it is sent."""

    def trained(self, *, paused: bool = False) -> Job:
        job = Job(max_blob_bytes=10_000, ask_to_send=True)
        ask(job)
        here(job, range(3), 10.0)
        if paused:
            job.handle(OwnerPaused(), 15.0)
        assert job.handle(UpdateTrained(KEY, update()), 20.0) == [SpoolUpdate(KEY, update(), REQUEST)]
        return job

    def test_trained_update_awaits_clearance_and_is_then_offered(self):
        job = self.trained()
        assert (job.awaits_clearance, job.next_deadline(), job.tick(60.0)) == (True, None, [])
        assert job.handle(MessageReceived(envelope_of(Grant(DIGEST, 4, NOTHING_YET))), 60.0) == []
        assert replies(job.handle(OwnerResumed(), 61.0)) == [Offer(update())]
        assert not job.awaits_clearance

    def test_restored_update_awaits_clearance(self):
        job = Job(max_blob_bytes=10_000, ask_to_send=True)
        job.handle(UpdateRestored(KEY, update(), REQUEST), 5.0)
        assert (job.awaits_clearance, job.tick(60.0)) == (True, [])

    def test_pause_ends_the_wait_for_clearance(self):
        """The end of the pause clears the update."""
        trained_before, trained_within = self.trained(), self.trained(paused=True)
        trained_before.handle(OwnerPaused(), 20.0)
        for job in (trained_before, trained_within):
            assert (job.paused, job.awaits_clearance) == (True, False)
            assert replies(job.handle(OwnerResumed(), 61.0)) == [Offer(update())]

    def test_end_of_the_job_ends_the_wait_for_clearance(self):
        job = self.trained()
        job.handle(MessageReceived(envelope_of(Cancel("late"))), 30.0)
        assert (job.state, job.awaits_clearance) == (JobState.IDLE, False)


def test_deadline_in_a_pause_sends_its_condition():
    job = training()
    job.handle(OwnerPaused(Condition.NOT_CHARGING), 20.0)
    assert replies(job.tick(310.0)) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]


def test_committed_in_a_pause_ends_the_job():
    job = uploading()
    job.handle(OwnerPaused(), 20.0)
    assert job.handle(MessageReceived(envelope_of(Committed(DIGEST))), 30.0)[-1] == EndJob("committed", committed=KEY)


def test_abandoned_job_sends_its_condition():
    job = training()
    job.handle(OwnerPaused(), 20.0)
    failed, stop, forget = job.handle(OwnerAbandoned("unplugged", Condition.NOT_CHARGING), 20.0)
    assert replies([failed]) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]
    assert stop == StopTraining()
    assert forget == EndJob("stopped for its owner: unplugged")


NEW_KEY = replace(KEY, epoch=2)


def ask_in_epoch(job: Job, request: WorkRequest, epoch: int = 2, now: float = 30.0) -> list[Effect]:
    """Request the work in the newer epoch, while the owner would decline new work."""
    return job.handle(requested(envelope_of(request, epoch=epoch), TASKS, AdmissionDecision(False, "no longer")), now)


def spoken_in(effects: list[Effect]) -> set[tuple[str, int, int]]:
    """Run, epoch and round of all sent messages."""
    envelopes = [effect.envelope for effect in effects if isinstance(effect, SendMessage)]
    return {(one.run, one.epoch, one.round) for one in envelopes}


class TestTakeOver:
    """The same run, round and work, asked for in a newer epoch."""

    def test_download_continues_in_new_epoch(self):
        job = downloading(have=frozenset({0}))
        for second in range(11, 40):
            job.tick(float(second))
        effects = ask_in_epoch(job, REQUEST, now=40.0)
        assert replies(effects) == [Accept(10)]
        assert len(effects) == 1
        assert job.status() == JobStatus(RUN, 2, 1, JobPhase.DOWNLOADING)
        need = job.tick(41.0)
        assert (replies(need), spoken_in(need)) == ([Need(model().digest, b"\x06")], {(RUN, 2, 1)})
        assert job.handle(ChunkReceived(cut(BLOB, model(), 1)), 42.0) == [WriteChunk(cut(BLOB, model(), 1))]
        _, begun, train = job.handle(ChunkReceived(cut(BLOB, model(), 2)), 43.0)
        assert spoken_in([begun]) == {(RUN, 2, 1)}
        assert train == StartTraining(NEW_KEY, REQUEST, download_s=33.0, plan=DownloadPlan(model()))

    def test_download_not_started_continues_in_new_epoch(self):
        job = Job(max_blob_bytes=10_000)
        ask(job)
        assert replies(ask_in_epoch(job, REQUEST)) == [Accept(10)]
        assert here(job, frozenset(), 31.0) == []
        need = job.tick(32.0)
        assert (replies(need), spoken_in(need)) == ([Need(model().digest, b"\x07")], {(RUN, 2, 1)})

    def test_training_continues_in_new_epoch(self):
        job = training()
        job.handle(TrainingProgressed(KEY, 2, 5), 20.0)
        effects = ask_in_epoch(job, REQUEST)
        assert replies(effects) == [Accept(10), Progress(JobPhase.TRAINING, 2, 5)]
        assert spoken_in(effects) == {(RUN, 2, 1)}
        progress = job.handle(TrainingProgressed(KEY, 3, 5), 40.0)
        assert (replies(progress), spoken_in(progress)) == ([Progress(JobPhase.TRAINING, 3, 5)], {(RUN, 2, 1)})
        spool, offer = job.handle(UpdateTrained(KEY, update()), 40.0)
        assert (spool, replies([offer])) == (SpoolUpdate(NEW_KEY, update(), REQUEST), [Offer(update())])
        assert spoken_in([offer]) == {(RUN, 2, 1)}

    def test_update_is_offered_at_once_in_a_new_epoch_whatever_the_old_one_has_put_off(self):
        job = uploading()
        job.handle(MessageReceived(envelope_of(RetryAfter(DIGEST, 60.0))), 20.0)
        assert job.tick(21.0) == []
        assert Offer(update()) in replies([one for one in ask_in_epoch(job, REQUEST) if isinstance(one, SendMessage)])

    def test_training_continues_in_new_epoch_with_other_features_and_measurement_and_another_leader(self):
        job = training()
        request = replace(REQUEST, features=COORDINATOR_FEATURES, measure_independent=True, leader_epoch=2)
        ask_in_epoch(job, request)
        assert (job.state, job.key) == (JobState.TRAINING, NEW_KEY)

    @pytest.mark.parametrize(("epoch", "expected"), [(0, False), (1, False), (2, True)])
    def test_request_continues_the_job_in_a_newer_epoch_only(self, epoch, expected):
        key = replace(KEY, epoch=epoch)
        assert continues(KEY, REQUEST, key, REQUEST, downloading=True) is expected
        assert not continues(None, REQUEST, key, REQUEST, downloading=True)
        assert not continues(KEY, None, key, REQUEST, downloading=True)

    @pytest.mark.parametrize(
        ("key", "expected"),
        [
            (KEY, True),
            (NEW_KEY, True),
            (replace(KEY, epoch=0), False),
            (replace(NEW_KEY, round=2), False),
            (replace(NEW_KEY, run="run-2"), False),
        ],
    )
    def test_job_is_on_its_key_and_on_newer_epochs_of_it(self, key, expected):
        assert training().is_on(key) is expected
        assert not Job(max_blob_bytes=1).is_on(key)

    def test_training_failure_is_sent_in_new_epoch(self):
        """A failure under the new key is ignored, since the training process never received that key."""
        job = training()
        ask_in_epoch(job, REQUEST)
        assert job.handle(TrainingFailed(NEW_KEY, FailReason.TRAINING, ""), 20.0) == []
        failed = job.handle(TrainingFailed(KEY, FailReason.NOT_FINITE, ""), 20.0)
        assert spoken_in(failed) == {(RUN, 2, 1)}

    def test_upload_is_offered_again_in_new_epoch(self):
        """The spool's note has the new epoch, also for a reboot; a grant of the old epoch is void."""
        job = uploading()
        job.handle(MessageReceived(envelope_of(Grant(DIGEST, 4, b"\x00"))), 21.0)
        request = replace(REQUEST, deadline_s=100.0)
        spool, *answers = ask_in_epoch(job, request)
        assert spool == SpoolUpdate(NEW_KEY, update(), request)
        assert (replies(answers), spoken_in(answers)) == ([Accept(10), Offer(update())], {(RUN, 2, 1)})
        assert job.handle(MessageReceived(envelope_of(Grant(DIGEST, 1, b"\x00"))), 31.0) == []
        assert job.handle(MessageReceived(envelope_of(Grant(DIGEST, 1, b"\x00"), epoch=2)), 31.0) == [SendChunk(0)]
        assert job.handle(MessageReceived(envelope_of(Committed(DIGEST), epoch=2)), 32.0) == [
            EndJob("committed", committed=NEW_KEY)
        ]

    def test_restored_update_continues_in_new_epoch(self):
        job = Job(max_blob_bytes=10_000)
        job.handle(UpdateRestored(KEY, update(), REQUEST), 5.0)
        spool, *answers = ask_in_epoch(job, REQUEST)
        assert (spool, replies(answers)) == (SpoolUpdate(NEW_KEY, update(), REQUEST), [Accept(10), Offer(update())])

    def test_restored_update_without_request_is_replaced_in_new_epoch(self):
        """A note of an older version does not name the model from which the update was trained."""
        job = Job(max_blob_bytes=10_000)
        job.handle(UpdateRestored(KEY, update()), 5.0)
        effects = ask(job, epoch=2)
        assert [type(effect) for effect in effects] == [EndJob, SendMessage, StartDownload]

    @pytest.mark.parametrize("changes", [{"task": "mnist", "num_examples": 7}, {"num_examples": 0}], ids=str)
    def test_new_epoch_is_accepted_with_the_former_examples_while_the_task_has_none(self, changes):
        """The task may not be loaded again yet, or the owner may have moved the data away in the middle of the round."""
        others = (replace(TASKS[0], **changes),)
        restored = Job(max_blob_bytes=10_000)
        restored.handle(UpdateRestored(KEY, update(), REQUEST), 5.0)
        for job, num_examples in ((training(), 10), (restored, 1)):
            effects = job.handle(requested(envelope_of(REQUEST, epoch=2), others), 30.0)
            assert Accept(num_examples) in replies(effects)

    @pytest.mark.parametrize("make", [downloading, training], ids=lambda make: make.__name__)
    def test_new_epoch_sets_its_deadline(self, make):
        job = make()
        ask_in_epoch(job, replace(REQUEST, deadline_s=1000.0), now=30.0)
        assert job.state is not JobState.IDLE
        assert replies(job.tick(1029.0)) in ([], [Need(model().digest, b"\x07")])
        assert replies(job.tick(1030.0)) == [Failed(FailReason.DEADLINE)]

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    def test_any_number_of_epochs_continue_the_job(self, make):
        """A coordinator may be killed any number of times in a round; messages of its older epochs are ignored."""
        job = make()
        for epoch in (2, 3, 7):
            assert replies(ask_in_epoch(job, REQUEST, epoch))[0] == Accept(10)
            assert ask_in_epoch(job, REQUEST, epoch - 1) == []
            assert job.handle(MessageReceived(envelope_of(Cancel("late"), epoch=epoch - 1)), 31.0) == []
        assert job.key == replace(KEY, epoch=7)

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize(
        "other",
        [
            replace(REQUEST, private="none"),
            replace(REQUEST, plan=replace(run_spec().plan, seed=3)),
            replace(REQUEST, model=model(b"n" * 250)),
            replace(REQUEST, encoding="fp16"),
            replace(REQUEST, chunk_bytes=2 * CHUNK_BYTES),
        ],
        ids=["private", "plan", "base", "encoding", "chunks"],
    )
    def test_other_work_in_new_epoch_replaces_the_job(self, make, other):
        job = make()
        was_training = job.state is JobState.TRAINING
        effects = job.handle(requested(envelope_of(other, epoch=2)), 30.0)
        assert [type(effect) for effect in effects] == [
            *([StopTraining] * was_training),
            EndJob,
            SendMessage,
            StartDownload,
        ]

    def test_other_chunk_size_replaces_the_job_only_while_downloading(self):
        """Behind a broker with another limit the same model has other chunks, so the received chunks do not fit."""
        recut = replace(REQUEST, model=replace(model(), chunk_bytes=50, chunk_count=5))
        job = downloading()
        assert [type(effect) for effect in job.handle(requested(envelope_of(recut, epoch=2)), 30.0)] == [
            EndJob,
            SendMessage,
            StartDownload,
        ]
        assert replies(ask_in_epoch(training(), recut)) == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]
        assert replies(ask_in_epoch(uploading(), recut)) == [Accept(10), Offer(update())]

    def test_new_epoch_before_task_is_loaded_is_not_answered(self):
        job = Job(max_blob_bytes=10_000)
        job.handle(UpdateRestored(KEY, update(), REQUEST), 5.0)
        assert job.handle(requested(envelope_of(REQUEST, epoch=2), ()), 6.0) == []
        assert job.key == KEY

    def test_damaged_model_is_downloaded_under_new_key(self):
        job = training()
        ask_in_epoch(job, REQUEST)
        assert job.handle(DownloadDamaged(), 20.0) == [StartDownload((model(),))]
        begun, train = here(job, range(3), 40.0)
        assert (spoken_in([begun]), train) == (
            {(RUN, 2, 1)},
            StartTraining(NEW_KEY, REQUEST, download_s=30.0, plan=DownloadPlan(model())),
        )
        assert job.handle(UpdateTrained(KEY, update()), 41.0) == []
        assert isinstance(job.handle(UpdateTrained(NEW_KEY, update()), 41.0)[0], SpoolUpdate)


_MOVES: dict[str, Callable[[Job, int], list[Effect]]] = {
    "ask": lambda job, epoch: ask_in_epoch(job, REQUEST, epoch),
    "chunk": lambda job, epoch: job.handle(ChunkReceived(cut(BLOB, model(), epoch % 3)), 20.0),
    "all chunks": lambda job, epoch: [
        e for i in range(3) for e in job.handle(ChunkReceived(cut(BLOB, model(), i)), 20.0)
    ],
    "old": lambda job, epoch: job.handle(MessageReceived(envelope_of(Committed(DIGEST), epoch=epoch - 1)), 20.0),
    "quiet": lambda job, epoch: job.tick(25.0),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(_MOVES)), st.booleans()), max_size=30))
def test_any_epochs_train_a_round_once(moves):
    """For any epochs: one download, one training, and all messages carry the last requested epoch."""
    job = Job(max_blob_bytes=10_000)
    effects = [*ask(job), *here(job, frozenset(), 10.0)]
    epoch, trained = 1, False
    for move, newer in moves:
        if move == "ask" and newer:
            epoch += 1
        done = _MOVES[move](job, epoch)
        assert spoken_in(done) <= {(RUN, epoch, 1)}
        effects += done
        for train in [effect for effect in done if isinstance(effect, StartTraining)]:
            assert not trained
            trained = True
            assert job.handle(TrainingProgressed(replace(train.key, epoch=train.key.epoch + 1), 1, 2), 20.0) == []
        if trained and job.state is JobState.TRAINING and newer:
            key = next(effect.key for effect in effects if isinstance(effect, StartTraining))
            effects += job.handle(UpdateTrained(key, update()), 20.0)
    assert sum(isinstance(effect, StartDownload) for effect in effects) == 1
    assert not any(isinstance(effect, EndJob | StopTraining) for effect in effects)
    spooled = [effect.key.epoch for effect in effects if isinstance(effect, SpoolUpdate)]
    assert spooled == sorted(set(spooled))
    assert not spooled or spooled[-1] == epoch


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


class Handler:
    """Records effects; the first one returns an event."""

    def __init__(self, event: JobEvent) -> None:
        self.performed: list[Effect] = []
        self.event = event

    def run_effect(self, effect: Effect) -> list[JobEvent]:
        """Perform one effect (EffectHandler)."""
        self.performed.append(effect)
        return [self.event] if len(self.performed) == 1 else []


@pytest.mark.parametrize(
    ("make", "event", "then"),
    [
        (training, UpdateTrained(KEY, update()), [StopDownload, SpoolUpdate, SendMessage]),
        (training, EffectFailed(FailReason.STORAGE, "disk"), [SendMessage, StopTraining, EndJob]),
        (lambda: Job(max_blob_bytes=1), EffectFailed(FailReason.STORAGE, "disk"), [StopDownload, ReportFailure]),
    ],
    ids=["succeeds", "fails", "fails while idle"],
)
def test_run_effects_only_a_failed_effect_of_a_job_replaces_the_effects_after_it(make, event, then):
    handler = Handler(event)
    drive_job(make(), [PauseTraining(), StopDownload()], handler, lambda: 20.0)
    assert [type(effect) for effect in handler.performed] == [PauseTraining, *then]


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
