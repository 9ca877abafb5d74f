"""Answers to work requests: accept, decline, repetitions, and newer epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_effects import (
    Effect,
    EndJob,
    JobState,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
    StopTraining,
    WriteChunk,
)
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    CoordinatorStarted,
    DownloadDamaged,
    EffectFailed,
    MessageReceived,
    TrainingFailed,
    TrainingProgressed,
    UpdateRestored,
    UpdateTrained,
    decline,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.same_work import continues
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.features import COORDINATOR_FEATURES
from fedpatch.shared.wire.messages import (
    Accept,
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
    FailReason,
    JobPhase,
    RefuseReason,
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
