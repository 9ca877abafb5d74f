"""What a device decided stays decided: however often the same request comes, it has the same answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.job_effects import EndJob, JobState, StartDownload, StopTraining
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.shared.wire.messages import Accept, Decline, Failed, Offer
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason
from tests.device_agent.jobs import IN_EACH_STATE, KEY, REQUEST, ask, downloading, said_back, training, uploading
from tests.support.specs import TASKS, said, update

NO = Decline(DeclineReason.UNWILLING, "no")


class TestDeclined:
    def test_stays_declined_whatever_the_owner_says_since(self):
        """The coordinator has counted the device out of this round; the decline may have been lost on its way."""
        job = Job(max_blob_bytes=10_000)
        assert said_back(ask(job, accept=False)) == [NO]
        assert said_back(ask(job, accept=True)) == said_back(ask(job, accept=True)) == [NO]
        assert job.state is JobState.IDLE

    @pytest.mark.parametrize("newer", [{"round_number": 2}, {"epoch": 2}, {"run": "run-2"}], ids=str)
    def test_is_judged_anew_in_a_newer_round_or_epoch(self, newer):
        """That is another question."""
        job = Job(max_blob_bytes=10_000)
        ask(job, accept=False)
        assert said_back(ask(job, **newer)) == [Accept(10)]

    def test_for_a_lasting_reason_is_said_again_in_the_same_words(self):
        """Even if the task's data or version changed meanwhile: the next round's request finds out."""
        job = Job(max_blob_bytes=10_000)
        none = (replace(TASKS[0], num_examples=0),)
        [first] = said_back(job.on_request(said(REQUEST), none, AdmissionDecision(True), 10.0))
        assert said_back(ask(job)) == [first]

    def test_overtakes_what_is_older(self):
        """A request of an earlier round that was long on its way is not a chance that is left."""
        job = Job(max_blob_bytes=10_000)
        ask(job, 2, accept=False)
        assert ask(job, 1) == []
        assert ask(job, 7, epoch=0) == []

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    def test_beside_a_job_of_another_run_leaves_both_as_they_are(self, make):
        """The one goes on, the other stays declined."""
        job = make()
        for _ in range(2):
            assert said_back(ask(job, run="run-2", accept=False)) == [NO]
        assert said_back(ask(job, run="run-2")) == [NO]
        assert job.key == KEY


class TestFailed:
    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize("reason", [FailReason.TRAINING, FailReason.STORAGE], ids=str)
    def test_is_said_again(self, make, reason):
        """A lost `failed` would leave the coordinator waiting until the deadline."""
        job = make()
        job.give_up(reason, "as it happens")
        assert [said_back(ask(job)) for _ in range(2)] == [[Failed(reason)]] * 2
        assert job.state is JobState.IDLE

    def test_at_the_deadline_too(self):
        """The device's patience and the coordinator's need not end at the same moment."""
        job = training()
        job.tick(310.0)
        assert said_back(ask(job)) == [Failed(FailReason.DEADLINE)]

    def test_is_tried_again_in_a_newer_epoch(self):
        """The coordinator that came back asks for the round anew; the device may fare better."""
        job = training()
        job.give_up(FailReason.TRAINING, "")
        assert [type(effect) for effect in ask(job, epoch=2)][1:] == [StartDownload]

    def test_in_the_epoch_that_took_the_job_over_is_said_there(self):
        """The old epoch has nobody any more who would ask."""
        job = training()
        ask(job, epoch=2)
        job.give_up(FailReason.TRAINING, "")
        assert said_back(ask(job, epoch=2)) == [Failed(FailReason.TRAINING)]
        assert ask(job) == []

    def test_is_remembered_beside_a_decline(self):
        """Of another run, for instance."""
        job = downloading()
        job.give_up(FailReason.DOWNLOAD, "")
        ask(job, run="run-2", accept=False)
        assert said_back(ask(job)) == [Failed(FailReason.DOWNLOAD)]
        assert said_back(ask(job, run="run-2")) == [NO]

    def test_is_no_longer_said_once_the_next_round_is_taken(self):
        """Only the last needs remembering; what is older is overtaken."""
        job = training()
        job.give_up(FailReason.TRAINING, "")
        ask(job, 2)
        assert ask(job) == []

    def test_of_a_spooled_update_is_said_after_a_restart(self):
        """A disk that fails under the update."""
        job = Job(max_blob_bytes=10_000)
        job.resume(KEY, update(), 5.0, REQUEST)
        job.give_up(FailReason.STORAGE, "")
        assert said_back(ask(job)) == [Failed(FailReason.STORAGE)]


questions = st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())


@given(st.lists(questions, max_size=40))
def test_no_question_is_ever_answered_in_two_ways(asked):
    """Any requests of a run, willing or not, any failures: after `decline` or `failed` comes only the same, or silence."""
    job = Job(max_blob_bytes=10_000)
    final: dict[tuple, Decline | Failed] = {}
    for epoch, number, accept, fails in asked:
        question = (epoch, number)
        effects = ask(job, number, epoch=epoch, accept=accept)
        answers = said_back(effects)
        if question in final:
            assert answers in ([], [final[question]])
            assert not [effect for effect in effects if isinstance(effect, StartDownload | EndJob | StopTraining)]
        for answer in answers:
            if isinstance(answer, Decline | Failed):
                final[question] = answer
        if fails and job.key is not None:
            key = job.key
            assert said_back(job.give_up(FailReason.TRAINING, "")) == [Failed(FailReason.TRAINING)]
            final[key.epoch, key.round] = Failed(FailReason.TRAINING)


def test_an_uploading_job_is_not_asked_to_speak_twice():
    """The same request in the same epoch adds nothing to its offers."""
    job = uploading()
    assert ask(job) == []
    assert said_back(job.tick(23.0)) == [Offer(update())]
