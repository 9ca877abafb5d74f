"""The owner's terms for masked rounds: declined requests, their reasons, and updates that never leave."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import UNSET

from fedpatch.device_agent.policy import secure_limits
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.secure_limits import ALLOWED, OFF, REQUIRED, SecureLimits
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.wire.features import MASKED_REASONS_FEATURE
from fedpatch.shared.wire.masking_messages import ThresholdRule
from fedpatch.shared.wire.messages import Decline
from fedpatch.shared.wire.privacy_messages import SKELLAM, PrivacyTerms
from fedpatch.shared.wire.reason_codes import DeclineReason
from tests.device_agent.job.test_masked_job import MASKED, TERMS, job_of
from tests.device_agent.jobs import REQUEST, requested
from tests.device_agent.owners import READY
from tests.support.specs import TASK, TASKS, envelope_of, update

MEASURE = replace(REQUEST, evaluate=True)
MASKED_UPDATE = replace(update(), encoding="masked-u8")


def secure(**changes):
    return replace(MASKED, secure=replace(TERMS, **changes))


@pytest.mark.parametrize(
    ("limits", "request_", "reason", "words"),
    [
        (SecureLimits(REQUIRED), REQUEST, DeclineReason.INSECURE_REQUEST, "leave this device unmasked"),
        (SecureLimits(REQUIRED), MEASURE, DeclineReason.INSECURE_REQUEST, "leave this device unmasked"),
        (
            SecureLimits(REQUIRED, min_group=2),
            replace(MASKED, evaluate=True),
            DeclineReason.INSECURE_REQUEST,
            "leave this device unmasked",
        ),
        (SecureLimits(min_group=2), replace(MASKED, evaluate=True), DeclineReason.UNSUPPORTED, "not masked"),
        (SecureLimits(min_group=8), secure(group_min=7, group_max=10), DeclineReason.SECURE_TERMS, "min_group = 8"),
        (SecureLimits(min_group=2, clip=0.5), secure(clip=0.6), DeclineReason.SECURE_TERMS, "clip = 0.5"),
        (
            SecureLimits(min_group=2, max_weight_cap=600),
            secure(weight_cap=601),
            DeclineReason.SECURE_TERMS,
            "max_weight_cap = 600",
        ),
        (SecureLimits(min_group=2), secure(keep=3), DeclineReason.UNSUPPORTED, "keep is 3"),
        (SecureLimits(min_group=2), secure(bits=16), DeclineReason.UNSUPPORTED, "16 bits"),
        (SecureLimits(min_group=2), secure(grid=b"\x00\x00\x00\x00"), DeclineReason.UNSUPPORTED, "not a positive"),
        (
            SecureLimits(min_group=2),
            secure(strict=True, threshold=ThresholdRule.TWO_THIRDS),
            DeclineReason.UNSUPPORTED,
            "no certificate of its fleet's CA",
        ),
        (
            SecureLimits(min_group=2, signs=True),
            secure(strict=True),
            DeclineReason.UNSUPPORTED,
            "belong to a threshold of two_thirds",
        ),
        (
            SecureLimits(min_group=2, min_threshold=ThresholdRule.TWO_THIRDS, signs=True),
            secure(threshold=ThresholdRule.TWO_THIRDS),
            DeclineReason.SECURE_TERMS,
            "min_threshold = two_thirds",
        ),
        (SecureLimits(min_group=2), replace(MASKED, content=UNSET), DeclineReason.UNSUPPORTED, "values of its model"),
        (
            SecureLimits(min_group=2),
            replace(MASKED, plan=replace(MASKED.plan, moments=("exp_avg",))),
            DeclineReason.UNSUPPORTED,
            "moments",
        ),
    ],
)
def test_request_below_the_terms_is_declined_with_its_word(limits, request_, reason, words):
    refusal = limits.refusal(request_)
    assert refusal is not None
    assert (refusal.accept, refusal.reason) == (False, reason)
    assert words in refusal.why


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        (SecureLimits(ALLOWED), REQUEST),
        (SecureLimits(OFF), REQUEST),
        (SecureLimits(ALLOWED), MEASURE),
        (SecureLimits(REQUIRED, min_group=2), MASKED),
        (SecureLimits(min_group=8), secure(group_min=8, group_max=10)),
        (SecureLimits(min_group=2, clip=0.5), secure(clip=0.5)),
        (SecureLimits(min_group=2, max_weight_cap=600), secure(weight_cap=600)),
        (
            SecureLimits(min_group=2, min_threshold=ThresholdRule.TWO_THIRDS, signs=True),
            secure(strict=True, threshold=ThresholdRule.TWO_THIRDS),
        ),
    ],
)
def test_request_within_the_terms_is_not_declined(limits, request_):
    assert limits.refusal(request_) is None


@pytest.mark.parametrize(
    ("features", "reason"),
    [((MASKED_REASONS_FEATURE,), DeclineReason.INSECURE_REQUEST), ((), DeclineReason.UNSUPPORTED)],
)
def test_unmasked_request_is_declined_where_masks_are_required(tmp_path, features, reason):
    """The decline precedes any download; an older coordinator gets a reason that it understands."""
    request = replace(REQUEST, features=features)
    refusal = limits_of(tmp_path, REQUIRED).refusal(TASK, request)
    assert refusal is not None
    [effect] = job_of().handle(requested(envelope_of(request), TASKS, refusal), 0.0)
    assert isinstance(effect.envelope.body, Decline)
    assert effect.envelope.body.reason is reason


def limits_of(folder, mode):
    limits = OwnerLimits(folder / "patches", max_steps=1000, max_epochs=100, secure=SecureLimits(mode, min_group=2))
    limits.take(READY)
    return limits


@pytest.mark.parametrize(
    ("mode", "request_", "manifest", "words"),
    [
        (REQUIRED, REQUEST, update(), "no update leave this device unmasked"),
        (ALLOWED, MASKED, update(), "encoded as fp32"),
        (REQUIRED, MASKED, update(), "encoded as fp32"),
        (ALLOWED, REQUEST, MASKED_UPDATE, "encoded as masked-u8"),
        (ALLOWED, REQUEST, update(), ""),
        (REQUIRED, MASKED, MASKED_UPDATE, ""),
    ],
)
def test_update_of_the_wrong_kind_does_not_leave(tmp_path, mode, request_, manifest, words):
    """This includes an update that has waited since before the owner's decision."""
    why = limits_of(tmp_path, mode).why_not_send(request_, manifest)
    assert words in why if words else why == ""


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (SecureLimits(min_group=8), "min_group = 8"),
        (SecureLimits(min_group=2, clip=0.5), "clip = 0.5"),
        (SecureLimits(min_group=2, min_threshold=ThresholdRule.TWO_THIRDS, signs=True), "min_threshold = two_thirds"),
    ],
)
def test_masked_update_from_before_the_owner_set_stricter_terms_does_not_leave(tmp_path, now, words):
    limits = OwnerLimits(tmp_path / "patches", max_steps=1000, max_epochs=100, secure=now)
    limits.take(READY)
    assert words in limits.why_not_send(secure(group_min=7, group_max=10, clip=1.0), MASKED_UPDATE)


@pytest.mark.parametrize(("mode", "offers"), [(OFF, False), (ALLOWED, True), (REQUIRED, True)])
def test_device_offers_masks_unless_its_owner_turned_them_off(mode, offers):
    assert SecureLimits(mode).offers is offers


def test_device_without_cryptography_offers_no_masks_and_cannot_require_them(monkeypatch):
    monkeypatch.setattr(secure_limits, "is_available", lambda: False)
    monkeypatch.setattr("fedpatch.device_agent.settings.is_available", lambda: False)
    assert not SecureLimits(ALLOWED).offers
    [problem] = AgentSettings(data="shard:0/10", secure=REQUIRED, min_threshold="half").check()
    assert problem[0] == "secure"
    assert "pip install 'fedpatch[secure]'" in problem[1]
    assert AgentSettings(data="shard:0/10").check() == []


def test_required_masks_demand_signed_keys_unless_the_owner_chooses_unsigned_ones_by_name(tmp_path):
    assert AgentSettings(data="shard:0/10", secure=REQUIRED).least_threshold == "two_thirds"
    [problem] = AgentSettings(data="shard:0/10", secure=REQUIRED).check()
    assert problem[0] == "secure"
    assert "cert_file and ca_file" in problem[1]
    assert "min_threshold = half takes unsigned masks" in problem[1]
    named = AgentSettings(data="shard:0/10", secure=REQUIRED, min_threshold="half")
    assert (named.check(), named.least_threshold) == ([], "half")
    assert AgentSettings(data="shard:0/10").least_threshold == "half"
    files = {"cert_file": tmp_path / "pi.crt", "ca_file": tmp_path / "ca.crt"}
    assert AgentSettings(data="shard:0/10", secure=REQUIRED, **files).least_threshold == "two_thirds"


def test_owner_who_requires_masks_limits_the_weight_of_one_device_without_naming_a_limit():
    assert AgentSettings(data="shard:0/10", secure=REQUIRED).weight_limit == 1000
    assert AgentSettings(data="shard:0/10", secure=REQUIRED, max_weight_cap=5).weight_limit == 5
    assert AgentSettings(data="shard:0/10").weight_limit == 0


def test_round_whose_noise_counts_on_fewer_colluders_than_the_owner_demands_is_declined():
    privacy = PrivacyTerms(SKELLAM, 1.0, 1.0, 1e-5, 10, steps=100)
    limits = SecureLimits(min_group=2, min_colluders=1)
    refusal = limits.refusal(replace(MASKED, privacy=privacy))
    assert refusal is not None
    assert (refusal.reason, "min_colluders = 1" in refusal.why) == (DeclineReason.SECURE_TERMS, True)
    assert limits.refusal(replace(secure(colluders=1), privacy=privacy)) is None
    assert limits.refusal(MASKED) is None


PROBES = [replace(MASKED.plan, batch_size=10, epochs=0, steps=steps) for steps in range(1, 100_000, 97)]
PROBES += [replace(MASKED.plan, batch_size=size, epochs=100, steps=0) for size in range(1, 20)]
"""Plans around the limits of an owner, in both units."""


@pytest.mark.parametrize(
    ("mode", "numbers", "told"),
    [
        (REQUIRED, (1024, 1025, 2000, 4095), False),
        (REQUIRED, (1, 3), False),
        (REQUIRED, (4095, 4096), True),
        (ALLOWED, (1024, 1040), True),
    ],
)
def test_answers_to_any_plans_tell_the_powers_of_4_next_to_the_number_of_examples_where_masks_are_required(
    tmp_path, mode, numbers, told
):
    """A coordinator that lies may ask for many plans near the owner's limits, and learns which ones are declined."""
    answers = set()
    for number in numbers:
        limits = OwnerLimits(
            tmp_path, max_steps=100_000, max_epochs=100, secure=SecureLimits(mode, min_group=TERMS.group_min)
        )
        limits.take(replace(READY, num_examples=number))
        found = [limits.refusal(TASK, replace(MASKED, plan=plan)) for plan in PROBES]
        assert {one.reason for one in found if one is not None} == {DeclineReason.PLAN_LIMIT}
        answers.add(tuple(found))
    assert (len(answers) > 1) == told
