"""Work requests: accepted, repeated, overtaken, declined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.device_agent.job.job_effects import EndJob, JobState, SendMessage, StartDownload, StopTraining
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.shared.wire.messages import Accept, Committed, Decline, JobStatus, Progress, Refused
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, JobPhase, RefuseReason
from tests.device_agent.jobs import (
    DIGEST,
    IN_EACH_STATE,
    KEY,
    REQUEST,
    ask,
    downloading,
    said_back,
    training,
    uploading,
)
from tests.support.specs import RUN, TASKS, model, said


class TestRequest:
    def test_is_accepted_and_fetched(self):
        """The answer carries the terms of the request; then the model is wanted."""
        job = Job(max_blob_bytes=10_000)
        effects = ask(job, 2, epoch=3)
        assert effects == [SendMessage(said(Accept(10), 2, epoch=3, id=1)), StartDownload((model(),))]
        assert job.status() == JobStatus(RUN, 3, 2, JobPhase.DOWNLOADING)

    def test_again_is_answered_again(self):
        """The answer was lost; the work goes on as it was, whatever the owner says now."""
        job = downloading()
        assert said_back(ask(job, accept=False)) == [Accept(10)]
        assert job.state is JobState.DOWNLOADING

    def test_again_while_training_is_answered_with_how_far_it_is(self):
        """What was last told of it may be lost, too."""
        job = training()
        assert said_back(ask(job, accept=False)) == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]
        job.progress(KEY, 3, 5)
        assert said_back(ask(job)) == [Accept(10), Progress(JobPhase.TRAINING, 3, 5)]
        assert job.state is JobState.TRAINING

    def test_again_while_uploading_is_answered_by_the_offer(self):
        """An acceptance would be a step back."""
        assert ask(uploading()) == []

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize("newer", [{"round_number": 2}, {"round_number": 2, "epoch": 2}, {"run": "run-2"}], ids=str)
    def test_that_is_newer_replaces_the_job(self, make, newer):
        """The old round is over; its training stops, its update is forgotten."""
        job = make()
        was_training = job.state is JobState.TRAINING
        effects = ask(job, **newer)
        assert [type(effect) for effect in effects] == [
            *([StopTraining] * was_training),
            EndJob,
            SendMessage,
            StartDownload,
        ]
        assert job.state is JobState.DOWNLOADING

    @pytest.mark.parametrize("older", [{"round_number": 4, "epoch": 2}, {"round_number": 9, "epoch": 1}], ids=str)
    def test_that_is_older_is_passed_over(self, older):
        """It has been overtaken."""
        job = Job(max_blob_bytes=10_000)
        ask(job, 5, epoch=2)
        assert ask(job, **older) == []
        assert job.status() == JobStatus(RUN, 2, 5, JobPhase.DOWNLOADING)

    @pytest.mark.parametrize(
        "end", [Committed(DIGEST), Refused(DIGEST, RefuseReason.NOT_FINITE)], ids=lambda e: type(e).__name__
    )
    def test_for_what_is_done_is_passed_over(self, end):
        """A request that is delivered twice must not train twice."""
        job = uploading()
        job.on_message(said(end), 21.0)
        assert ask(job) == []
        assert job.state is JobState.IDLE
        assert said_back(ask(job, 2)) == [Accept(10)]

    def test_before_the_device_is_ready_is_not_answered(self):
        """It will be sent again; declining for want of tasks would be held against the device."""
        assert Job(max_blob_bytes=10_000).on_request(said(REQUEST), (), AdmissionDecision(True), 10.0) == []


class TestDecline:
    @pytest.mark.parametrize(
        ("request_", "accept", "reason"),
        [
            (replace(REQUEST, schema="00" * 32), True, "schema_mismatch"),
            (replace(REQUEST, encoding="morse"), True, "unsupported"),
            (replace(REQUEST, model=replace(model(), encoding="morse")), True, "unsupported"),
            (replace(REQUEST, model=replace(model(), raw_bytes=10_001)), True, "unsupported"),
            (REQUEST, False, "unwilling"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_has_its_reason(self, request_, accept, reason):
        """A lasting reason comes before a passing one; nothing is begun."""
        job = Job(max_blob_bytes=10_000)
        effects = job.on_request(said(request_), TASKS, AdmissionDecision(accept, "on battery"), 10.0)
        [body] = said_back(effects)
        assert (len(effects), getattr(body, "reason", ""), job.state) == (1, reason, JobState.IDLE)
        assert (
            "morse" in getattr(body, "detail", "") or reason != "unsupported" or "limit" in getattr(body, "detail", "")
        )

    def test_for_a_task_that_is_not_here_says_which_are(self):
        """Cut to what a message holds, however many there are."""
        many = tuple(replace(TASKS[0], task=f"task-{number:02}-{'x' * 50}") for number in range(40))
        [body] = said_back(Job(max_blob_bytes=1).on_request(said(REQUEST), many, AdmissionDecision(True), 0.0))
        assert getattr(body, "reason", "") == "unknown_task"
        detail = getattr(body, "detail", "")
        assert "'digits' is not installed" in detail
        assert len(detail) <= 500

    def test_for_want_of_data(self):
        """Nothing can be learnt from no examples."""
        none = (replace(TASKS[0], num_examples=0),)
        [body] = said_back(Job(max_blob_bytes=10_000).on_request(said(REQUEST), none, AdmissionDecision(True), 0.0))
        assert getattr(body, "reason", "") == "too_little_data"

    def test_for_a_preference_says_which_and_when_to_ask_again(self):
        """So that the coordinator does not ask in vain."""
        verdict = AdmissionDecision(False, "quiet hours", Condition.QUIET_HOURS, 1800.0)
        effects = Job(max_blob_bytes=10_000).on_request(said(REQUEST), TASKS, verdict, 10.0)
        expected = Decline(DeclineReason.UNWILLING, "quiet hours", Condition.QUIET_HOURS, 1800.0)
        assert said_back(effects) == [expected]

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    def test_costs_no_work_that_was_begun(self, make):
        """Whoever is owed that work says itself when it is of no use any more."""
        job = make()
        state = job.state
        assert [type(effect) for effect in ask(job, 1, run="run-2", accept=False)] == [SendMessage]
        assert (job.key, job.state) == (KEY, state)
