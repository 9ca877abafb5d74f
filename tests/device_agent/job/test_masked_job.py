"""A work request of a masked round: keys with the acceptance, masks when the inbox is there, a reveal after the job."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from msgspec import UNSET

from fedpatch.coordinator.rounds.asked_after_decline import lasts
from fedpatch.device_agent.job.job_effects import (
    EndJob,
    ForgetMasking,
    JobKey,
    JobState,
    MaskUpdate,
    ReportFailure,
    SaveBase,
    SaveMasking,
    SendAfterSave,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
)
from fedpatch.device_agent.job.job_events import (
    ChunkReceived,
    DownloadStarted,
    MessageReceived,
    TrainingProgressed,
    UpdateTrained,
    VectorTrained,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.same_work import continues
from fedpatch.device_agent.masking.masking_round import MaskingRound, RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.group_context import MaskingGroup, request_digest
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.codec import from_bytes, to_bytes
from fedpatch.shared.wire.features import MASKED_REASONS_FEATURE
from fedpatch.shared.wire.masking_messages import GroupMember, Inbox, Roster, Unmask
from fedpatch.shared.wire.messages import Accept, Cancel, Committed, Decline, Failed, Manifest
from fedpatch.shared.wire.privacy_messages import SKELLAM, PrivacyTerms
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason
from tests.device_agent.jobs import BLOB, KEY, REQUEST, ask, requested
from tests.support.masked_group import MaskedDevice, terms_of
from tests.support.specs import RUN, TASK, envelope_of, model

TERMS = terms_of(3)
MASKED = replace(REQUEST, encoding="masked-u8", secure=TERMS, features=(MASKED_REASONS_FEATURE,), content="ec" * 32)
NAME = RoundName(TASK, RUN, 1)
UPDATE = Manifest("0d" * 32, 300, 100, 3, "masked-u8", 300, REQUEST.schema)
OTHERS = [MaskedDevice(f"pj-{index}", seed=3) for index in range(2)]


def job_of(restored=None):
    masking = MaskingRounds("pi", random.Random(0).randbytes, restored)
    return Job(max_blob_bytes=10_000, masking=masking)


def ask_masked(job, request=MASKED, round_number=1, epoch=1):
    return job.handle(requested(envelope_of(request, round_number, epoch=epoch)), 10.0)


def bodies(effects):
    return [effect.envelope.body for effect in effects if hasattr(effect, "envelope")]


def accepted(request=MASKED):
    """A job in DOWNLOADING, and its keys."""
    job = job_of()
    effects = ask_masked(job, request)
    assert isinstance(effects[0], SendAfterSave)
    return job, effects[0].state.secrets.public()


def training(request=MASKED):
    job, keys = accepted(request)
    job.handle(DownloadStarted({model().digest: frozenset()}), 10.0)
    for index in range(3):
        job.handle(ChunkReceived(cut(BLOB, model(), index)), 12.0)
    assert job.state is JobState.TRAINING
    return job, keys


def group_with(keys, request=MASKED, others=OTHERS):
    """The roster of the device and two others, and the inbox of the device."""
    theirs = [device.accept(request, NAME) for device in others]
    members = [GroupMember("pi", keys), *(GroupMember(d.name, k) for d, k in zip(others, theirs, strict=True))]
    roster = Roster(0, 2, tuple(members))
    shares = [device.share(roster, NAME) for device in others]
    group = MaskingGroup.of_roster(request_digest(TASK, RUN, 1, request), roster)
    return roster, Inbox(group.context, (b"", *(one.boxes[0] for one in shares))), group


def receive(job, body, epoch=1, now=13.0):
    return job.handle(MessageReceived(envelope_of(body, epoch=epoch)), now)


def ready(request):
    """A job in TRAINING that has its inbox, in a group with two others for this request only."""
    job, keys = training(request)
    roster, inbox, _ = group_with(keys, request, [MaskedDevice(device.name, seed=4) for device in OTHERS])
    receive(job, roster)
    receive(job, inbox)
    return job


def in_group(job, keys):
    """Deliver the roster and the inbox; the two others have theirs, and offer their updates."""
    roster, inbox, group = group_with(keys)
    [sent] = bodies(receive(job, roster))
    shares = [sent, *(device.share(roster, NAME) for device in OTHERS)]
    for index, device in enumerate(OTHERS, 1):
        boxes = tuple(one.boxes[index] if place != index else b"" for place, one in enumerate(shares))
        device.take(Inbox(group.context, boxes), NAME)
        device.rounds.note_update(f"{index:064x}")
    receive(job, inbox)
    return group


def unmask_of(group, reported):
    """The request for the device's agreement, with the codes of the reported others."""
    bits = int.from_bytes(reported, "little")
    codes = (one.state.codes[0] if bits >> index & 1 else b"" for index, one in enumerate(OTHERS, 1))
    return Unmask(group.context, reported, (b"", *codes))


def test_acceptance_has_keys_and_no_number_of_examples():
    """The state with the secrets is saved before the acceptance is sent."""
    job = job_of()
    accept, download = ask_masked(job)
    assert isinstance(accept, SendAfterSave)
    assert accept.envelope.body == Accept(1, accept.state.secrets.public())
    assert type(download).__name__ == "StartDownload"


def test_repeated_request_has_the_same_keys():
    job, keys = accepted()
    [again] = bodies(ask_masked(job))
    assert again == Accept(1, keys)


def test_request_of_a_newer_epoch_has_the_same_keys_and_the_job_goes_on():
    job, keys = training()
    assert bodies(ask_masked(job, epoch=2))[0] == Accept(1, keys)
    assert (job.state, job.key) == (JobState.TRAINING, JobKey(RUN, 2, 1, TASK))


def test_device_that_restarted_accepts_with_the_keys_of_before():
    job, keys = accepted()
    state = from_bytes(to_bytes(job._context.masking.state), MaskingRound)
    again = job_of(state)
    assert bodies(ask_masked(again))[0] == Accept(1, keys)


@pytest.mark.parametrize("total", [1, 2, 30, 1000])
def test_progress_of_a_masked_round_shows_no_number_of_steps(total):
    """Its moments are those of a clock, not of steps, and its shares are quarters: one step of a few would be a share."""
    job, _ = training()
    sent = []
    for done in range(total + 1):
        at = 12.0 + 60.0 * done / total
        sent += [(at, body) for body in bodies(job.handle(TrainingProgressed(KEY, done, total), at))]
    assert {body.done for _, body in sent} <= {0, 25, 50, 75, 100}
    assert all(body.total == 100 for _, body in sent)
    assert all(0 <= 100 * (at - 12.0) / 60.0 - body.done < 25 for at, body in sent)
    assert all(later - earlier >= 15.0 for (earlier, _), (later, _) in pairwise([(12.0, None), *sent]))


def test_roster_is_answered_after_it_is_saved():
    job, keys = accepted()
    roster, _, group = group_with(keys)
    [effect] = receive(job, roster)
    assert isinstance(effect, SendAfterSave)
    assert effect.state.roster == roster
    assert effect.envelope.body == effect.state.shares_message()
    assert effect.state.group.context == group.context


@pytest.mark.parametrize("inbox_first", [True, False])
def test_vector_is_masked_once_it_and_the_inbox_are_there(inbox_first):
    job, keys = training()
    roster, inbox, group = group_with(keys)
    receive(job, roster)
    first, last = (
        (lambda: receive(job, inbox), lambda: job.handle(VectorTrained(KEY), 15.0))
        if inbox_first
        else (lambda: job.handle(VectorTrained(KEY), 15.0), lambda: receive(job, inbox))
    )
    assert not any(isinstance(effect, MaskUpdate) for effect in first())
    [mask] = [effect for effect in last() if isinstance(effect, MaskUpdate)]
    assert (mask.key, mask.context, len(mask.masks), mask.noise) == (KEY, group.context, 3, None)
    assert not any(isinstance(effect, MaskUpdate) for effect in receive(job, inbox))


def test_vector_is_masked_with_noise_where_the_request_has_terms_of_privacy():
    request = replace(MASKED, privacy=PrivacyTerms(SKELLAM, 2.0, 1.0, 1e-5, 3, 300))
    job = ready(request)
    [mask] = job.handle(VectorTrained(KEY), 15.0)
    assert mask.noise == job._context.masking.noise(request.privacy)


def test_vector_is_not_masked_with_an_unusable_key_of_a_kept_roster():
    """The state of an earlier version may have one. The device's own log names it."""
    job, keys = training()
    in_group(job, keys)
    state = job._context.masking.state
    you, other, third = state.roster.members
    spoilt = replace(other, keys=replace(other.keys, mask=bytes(32)))
    job._context.masking.state = replace(state, roster=replace(state.roster, members=(you, spoilt, third)))
    effects = job.handle(VectorTrained(KEY), 15.0)
    assert bodies(effects) == [Failed(FailReason.MASKING)]
    assert "not a usable X25519 key" in effects[-1].outcome


def test_masked_update_is_noted_and_spooled_before_it_is_offered():
    job, keys = training()
    in_group(job, keys)
    job.handle(VectorTrained(KEY), 15.0)
    save, base, spool, offer = job.handle(UpdateTrained(KEY, UPDATE), 16.0)
    assert isinstance(save, SaveMasking)
    assert save.state.update == UPDATE.digest
    assert base == SaveBase(str(MASKED.content))
    assert isinstance(spool, SpoolUpdate)
    assert offer.envelope.body.manifest == UPDATE
    assert offer.envelope.body.codes == save.state.codes != ()


def test_masked_update_from_unnamed_values_notes_no_base():
    """Otherwise all later requests without a name would be declined."""
    job = ready(replace(MASKED, content=UNSET))
    job.handle(VectorTrained(KEY), 15.0)
    effects = job.handle(UpdateTrained(KEY, UPDATE), 16.0)
    assert [type(effect) for effect in effects] == [SaveMasking, SpoolUpdate, SendMessage]


def test_second_update_under_the_same_keys_is_not_offered():
    """Two vectors under the same masks would reveal their difference."""
    job, keys = training()
    in_group(job, keys)
    job._context.masking.note_update("0e" * 32)
    job.handle(VectorTrained(KEY), 15.0)
    effects = job.handle(UpdateTrained(KEY, UPDATE), 16.0)
    assert bodies(effects) == [Failed(FailReason.MASKING)]
    assert isinstance(effects[-1], EndJob)


def test_masked_update_whose_masking_set_cannot_be_signed_is_not_offered():
    """The device has lost its certificate since the group was formed. Its own log says so."""
    job, keys = training()
    in_group(job, keys)
    job._context.masking.state = replace(job._context.masking.state, terms=replace(TERMS, strict=True))
    job.handle(VectorTrained(KEY), 15.0)
    effects = job.handle(UpdateTrained(KEY, UPDATE), 16.0)
    assert bodies(effects) == [Failed(FailReason.MASKING)]
    assert "no certificate" in effects[-1].outcome


def test_roster_with_a_mask_key_of_small_order_gets_no_shares():
    """The coordinator of this version refuses such keys, but a device does not rely on that."""
    job, keys = training()
    _, _, group = group_with(keys)
    theirs = OTHERS[0].accept(MASKED, NAME)
    members = [GroupMember("pi", keys), GroupMember("pj-0", replace(theirs, mask=bytes(32))), group.members[2]]
    [effect] = receive(job, Roster(0, 2, tuple(members)))
    assert isinstance(effect, ReportFailure)
    assert "not a usable X25519 key" in effect.detail


def test_update_that_is_masked_after_the_reveal_is_not_offered():
    """The sum is made without the update, and the secrets are erased."""
    job, keys = training()
    group = in_group(job, keys)
    job.handle(VectorTrained(KEY), 15.0)
    receive(job, unmask_of(group, b"\x06"))
    assert bodies(job.handle(UpdateTrained(KEY, UPDATE), 16.0)) == [Failed(FailReason.MASKING)]


def test_request_with_another_measurement_is_another_round_for_the_keys():
    """If only one device were asked for a figure, the sum would reveal it."""
    job, keys = training()
    effects = ask_masked(job, replace(MASKED, measure_independent=True), epoch=2)
    [accept] = [body for body in bodies(effects) if isinstance(body, Accept)]
    assert accept.keys != keys
    assert EndJob("superseded") in effects


def test_unmask_is_answered_after_the_job_and_in_any_epoch():
    job, keys = training()
    group = in_group(job, keys)
    job.handle(VectorTrained(KEY), 15.0)
    job.handle(UpdateTrained(KEY, UPDATE), 16.0)
    receive(job, Committed(UPDATE.digest))
    assert job.state is JobState.IDLE
    [agreement] = receive(job, unmask_of(group, b"\x07"), epoch=2)
    assert isinstance(agreement, SendAfterSave)
    assert (agreement.envelope.epoch, agreement.envelope.round, agreement.envelope.run) == (2, 1, RUN)
    assert agreement.state.reported == b"\x07"


def test_contradictory_unmask_has_no_answer_but_a_line_in_the_log():
    job, keys = training()
    group = in_group(job, keys)
    receive(job, unmask_of(group, b"\x06"))
    [effect] = receive(job, Unmask(group.context, b"\x03"))
    assert isinstance(effect, ReportFailure)
    assert "unmask refused: a second, different set" in effect.detail


def test_deadline_without_an_inbox_is_a_failure_of_the_masking():
    job, _ = training()
    job.handle(VectorTrained(KEY), 15.0)
    assert bodies(job.tick(10.0 + REQUEST.deadline_s))[0] == Failed(FailReason.MASKING)


def test_deadline_while_masks_are_added_is_no_failure_of_the_group():
    job, keys = training()
    in_group(job, keys)
    job.handle(VectorTrained(KEY), 15.0)
    assert bodies(job.tick(10.0 + REQUEST.deadline_s))[0] == Failed(FailReason.DEADLINE)


def test_deadline_of_the_round_after_one_without_an_inbox_is_no_failure_of_its_group():
    job, _ = training()
    job.handle(VectorTrained(KEY), 15.0)
    receive(job, Cancel("late"))
    ask_masked(job, round_number=2)
    assert bodies(job.tick(10.0 + REQUEST.deadline_s))[0] == Failed(FailReason.DEADLINE)


def test_unmasked_round_forgets_the_secrets_of_the_masked_one():
    job, _ = accepted()
    effects = job.handle(requested(envelope_of(REQUEST, 2)), 20.0)
    assert any(isinstance(effect, ForgetMasking) for effect in effects)
    assert Accept(10) in bodies(effects)


def test_unmasked_round_after_an_unmasked_one_has_no_secrets_to_forget():
    assert [type(effect) for effect in ask(job_of())] == [SendMessage, StartDownload]


def test_evaluate_request_with_masking_terms_keeps_the_secrets_of_the_last_masked_round():
    """The group of that round may still ask for shares."""
    job, keys = training()
    group = in_group(job, keys)
    ask_masked(job, replace(MASKED, evaluate=True), round_number=2)
    [agreement] = receive(job, unmask_of(group, b"\x06"))
    assert isinstance(agreement, SendAfterSave)


@pytest.mark.parametrize(
    ("make", "request_", "words"),
    [
        (partial(Job, max_blob_bytes=10_000), MASKED, "does not mask"),
        (job_of, replace(MASKED, encoding="fp32"), "'fp32'"),
        (job_of, replace(MASKED, secure=None), "'masked-u8'"),
        (job_of, replace(MASKED, encoding="masked-sum"), "'masked-sum'"),
        (partial(Job, max_blob_bytes=10_000, sums=True), MASKED, "'masked-u8'"),
        (job_of, replace(MASKED, secure=replace(TERMS, strict=True)), "no certificate"),
    ],
    ids=[
        "device without masks",
        "terms without their encoding",
        "encoding without terms",
        "sum of a site from a device",
        "masked update from a relay",
        "signed keys from a device without a certificate",
    ],
)
def test_request_that_cannot_be_masked_is_declined(make, request_, words):
    [decline] = bodies(ask_masked(make(), request_))
    assert isinstance(decline, Decline)
    assert decline.reason is DeclineReason.UNSUPPORTED
    assert words in decline.detail


class RefusesLists:
    """Certificates of a device that refuses each revocation list, with a reason that is too long for a message."""

    def take_revocations(self, der):
        raise WireError("z" * 600)


def test_reason_of_a_refused_revocation_list_is_cut_to_what_a_message_holds():
    certificates: Any = RefusesLists()
    masking = MaskingRounds("pi", random.Random(0).randbytes, certificates=certificates)
    request = replace(MASKED, secure=replace(TERMS, strict=True))
    [decline] = bodies(ask_masked(Job(max_blob_bytes=10_000, masking=masking), request))
    assert decline == Decline(DeclineReason.UNSUPPORTED, "z" * 500)


def test_relay_accepts_the_request_for_the_sum_of_its_site_without_keys():
    [accept] = bodies(ask_masked(Job(max_blob_bytes=10_000, sums=True), replace(MASKED, encoding="masked-sum")))
    assert accept == Accept(10)


def test_second_round_from_the_base_of_an_offered_update_is_declined_and_later_rounds_are_not():
    """For a lasting reason the coordinator would invite the device to no other round of the run either."""
    job, keys = training()
    in_group(job, keys)
    job.handle(VectorTrained(KEY), 15.0)
    job.handle(UpdateTrained(KEY, UPDATE), 16.0)
    receive(job, Cancel("late"))
    [decline] = bodies(ask_masked(job, MASKED, round_number=2, epoch=2))
    assert (decline.reason, lasts(decline)) == (DeclineReason.BASE_SPENT, False)
    [accept] = bodies(ask_masked(job, replace(MASKED, content="ed" * 32), round_number=3, epoch=2))
    assert isinstance(accept, Accept)


def test_training_of_a_masked_round_gets_the_secret_of_its_attempt():
    job, _ = accepted()
    job.handle(DownloadStarted({model().digest: frozenset()}), 10.0)
    effects = [effect for index in range(3) for effect in job.handle(ChunkReceived(cut(BLOB, model(), index)), 12.0)]
    [start] = [effect for effect in effects if isinstance(effect, StartTraining)]
    assert start.attempt == job._context.masking.training_secret() != b""


@pytest.mark.parametrize("make", [job_of, partial(Job, max_blob_bytes=10_000)], ids=["masks", "masks never"])
def test_training_of_an_unmasked_round_gets_no_secret(make):
    job = make()
    ask(job)
    _, start = job.handle(DownloadStarted({model().digest: range(3)}), 10.0)
    assert start.attempt == b""


def test_masking_message_to_a_device_without_masks_is_ignored():
    job = Job(max_blob_bytes=10_000)
    ask(job)
    assert receive(job, Unmask(bytes(32), b"\x01")) == []


@pytest.mark.parametrize(
    ("request_", "known", "asked", "expected"),
    [
        (REQUEST, "aa" * 32, "bb" * 32, False),
        (REQUEST, UNSET, "bb" * 32, True),
        (MASKED, "aa" * 32, "bb" * 32, False),
        (MASKED, UNSET, "bb" * 32, False),
    ],
)
def test_newer_epoch_with_other_values_of_the_model_asks_for_other_work(request_, known, asked, expected):
    """A coordinator that was updated names the values for the first time, but under masks the keys depend on the name."""
    before, after = replace(request_, content=known), replace(request_, content=asked)
    assert continues(KEY, before, replace(KEY, epoch=2), after, downloading=False) is expected
