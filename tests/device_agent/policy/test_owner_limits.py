"""The owner's limits at the agent's two checks: before it accepts, and before an update leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.device_agent.cli.doctor import _check_private
from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import Ready
from fedpatch.device_agent.policy.floor_status import least_without_model
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.privacy_budget import PrivacyBudget
from fedpatch.device_agent.state.privacy_account import ACCOUNT_NAME
from fedpatch.device_agent.state.storage_check import RETRY_S
from fedpatch.shared.errors import UsageError, WireError
from fedpatch.shared.tensors.schema import Schema
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.features import COORDINATOR_FEATURES
from fedpatch.shared.wire.messages import Decline, TrainPlan
from fedpatch.shared.wire.plan_terms import parse_phases
from fedpatch.shared.wire.reason_codes import DeclineReason
from tests.device_agent.jobs import REQUEST, replies, requested
from tests.device_agent.owners import READY, limits_of
from tests.support.checkups import quiet_checkup
from tests.support.specs import MODEL_SCHEMA, SCHEMA, TASK, TASKS, envelope_of, update

PLAN = TrainPlan("sgd", 0.1, 5)


KEEPS = "the request keeps {} private, the owner of this device at least affine; 'bn.weight' would leave it"


@pytest.mark.parametrize(
    ("changes", "reason", "why"),
    [
        ({"private": "none"}, DeclineReason.PRIVATE_POLICY, KEEPS.format("none")),
        ({"private": "names:fc.weight"}, DeclineReason.PRIVATE_POLICY, KEEPS.format("names:fc.weight")),
        (
            {"plan": replace(REQUEST.plan, steps=100_000_000)},
            DeclineReason.PLAN_LIMIT,
            "more training steps are asked for; the owner's limit is max_steps = 1000",
        ),
        (
            {"plan": replace(REQUEST.plan, steps=1, finish=parse_phases("all:1000s")), "evaluate": True},
            DeclineReason.PLAN_LIMIT,
            "more training steps are asked for, those of finish among them; the owner's limit is max_steps = 1000",
        ),
    ],
    ids=["none", "names", "plan", "finish"],
)
def test_a_request_beyond_a_limit_is_declined_with_a_word_of_its_own(tmp_path, changes, reason, why):
    request = replace(REQUEST, features=COORDINATOR_FEATURES, **changes)
    verdict = limits_of(tmp_path).refusal(TASK, request)
    assert verdict is not None
    [answer] = replies(Job(max_blob_bytes=10_000).handle(requested(envelope_of(request), TASKS, verdict), 0.0))
    assert answer == Decline(reason, why)


@pytest.mark.parametrize("reason", [DeclineReason.PRIVATE_POLICY, DeclineReason.PLAN_LIMIT])
def test_an_older_coordinator_gets_a_word_that_it_knows(reason):
    verdict = AdmissionDecision(False, "beyond a limit", reason=reason)
    [answer] = replies(Job(max_blob_bytes=10_000).handle(requested(envelope_of(REQUEST), TASKS, verdict), 0.0))
    assert answer == Decline(DeclineReason.UNSUPPORTED, "beyond a limit")


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        (TASK, {}),
        (TASK, {"private": "names:bn.*"}),
        (TASK, {"plan": replace(REQUEST.plan, steps=100_000_000), "evaluate": True}),
        ("another", {"private": "none"}),
        (TASK, {"private": "none", "schema": "7e" * 32}),
    ],
    ids=["as much", "more", "steps that an evaluation does not take", "another task", "another schema"],
)
def test_a_request_within_the_limits_or_of_another_model_is_not_declined(tmp_path, task, changes):
    assert limits_of(tmp_path).refusal(task, replace(REQUEST, **changes)) is None


@pytest.mark.parametrize("private", ["names:fc9.*", "afine", "names:*"])
def test_a_policy_that_the_model_does_not_fit_is_declined_before_a_download(tmp_path, private):
    verdict = limits_of(tmp_path).refusal(TASK, replace(REQUEST, private=private))
    assert verdict is not None
    assert verdict.reason is DeclineReason.UNSUPPORTED


def test_a_damaged_record_declines_every_request(tmp_path):
    limits = limits_of(tmp_path)
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / f"{TASK}.private").write_bytes(b"?")
    verdict = limits.refusal(TASK, REQUEST)
    assert verdict is not None
    assert (verdict.reason, verdict.retry_after_s) == (DeclineReason.STORAGE, RETRY_S)
    assert limits.status()["source"] == "damaged"
    assert least_without_model("", tmp_path / "patches", TASK)["source"] == "damaged"
    assert limits_of(tmp_path, private="affine").refusal(TASK, REQUEST) is None


@pytest.mark.parametrize(("required", "declines"), [(True, True), (False, False)])
def test_damaged_account_of_privacy_is_logged_at_the_start_and_declines_where_privacy_is_required(
    tmp_path, caplog, required, declines
):
    (tmp_path / ACCOUNT_NAME).write_bytes(b"?")
    budget = PrivacyBudget(tmp_path, fleet="lab", required=required)
    limits = OwnerLimits(tmp_path / "patches", max_steps=1, max_epochs=1, privacy=budget)
    limits.take(READY)
    assert [ACCOUNT_NAME in one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == [True]
    assert bool(limits.declines) is declines


def test_damaged_record_of_what_stayed_private_is_logged_as_an_error_at_the_start(tmp_path, caplog):
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / f"{TASK}.private").write_bytes(b"?")
    limits = limits_of(tmp_path)
    assert [f"{TASK}.private" in one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == [True]
    assert f"{TASK}.private" in limits.declines


class TestUpdate:
    def test_one_that_holds_just_what_may_leave_is_sent(self, tmp_path):
        assert limits_of(tmp_path).why_not_send(REQUEST, update()) == ""

    def test_one_that_holds_other_tensors_is_not_sent(self, tmp_path):
        whole = describe(b"u", chunk_bytes=1, encoding="fp32", raw_bytes=1, schema=SCHEMA)
        assert "just the tensors that may leave" in limits_of(tmp_path).why_not_send(REQUEST, whole)

    def test_one_from_before_the_owner_became_stricter_is_not_sent(self, tmp_path):
        """The update waited on the disk while the agent was restarted with another setting."""
        request = replace(REQUEST, private="none")
        whole = describe(b"u", chunk_bytes=1, encoding="fp32", raw_bytes=1, schema=SCHEMA)
        assert limits_of(tmp_path, private="none").why_not_send(request, whole) == ""
        assert "'bn.weight'" in limits_of(tmp_path).why_not_send(request, whole)

    def test_one_without_its_request_or_model_is_not_sent(self, tmp_path):
        assert limits_of(tmp_path).why_not_send(None, update())
        assert limits_of(tmp_path, known=False).why_not_send(REQUEST, update())


@pytest.mark.parametrize("plan", [replace(PLAN, steps=1000, batch_size=1000), replace(PLAN, batch_size=1, epochs=100)])
def test_decline_of_a_plan_does_not_depend_on_the_number_of_examples_which_the_log_has(tmp_path, plan, caplog):
    """A device with `secure = "required"` does not reveal its number of examples."""
    request, answers = replace(REQUEST, plan=plan, features=COORDINATOR_FEATURES), set()
    for number in (1430, 6000):
        limits = limits_of(tmp_path)
        limits.take(replace(READY, num_examples=number))
        answers.add(limits.refusal(TASK, request))
    assert len(answers) == 1
    assert None not in answers
    assert len({line for line in caplog.messages if "are asked for" in line}) == 2


def test_request_within_the_limits_is_accepted_although_a_measure_would_exceed_them(tmp_path):
    """The training process leaves the measure out; a lasting decline would end the run for the device."""
    request = replace(REQUEST, plan=replace(REQUEST.plan, steps=60, batch_size=1), measure_independent=True)
    assert limits_of(tmp_path, max_steps=100).refusal(TASK, request) is None


def test_a_setting_that_the_model_does_not_fit_ends_the_agent(tmp_path):
    limits = OwnerLimits(tmp_path, private="names:fc9", max_steps=1, max_epochs=1)
    with pytest.raises(UsageError, match=r"private = names:fc9: .*matches no tensor"):
        limits.take(READY)


def test_a_schema_that_is_not_that_of_its_digest_is_refused(tmp_path):
    with pytest.raises(WireError, match="digest"):
        limits_of(tmp_path, known=False).take(Ready(TASK, "5c" * 32, 10, MODEL_SCHEMA.specs))


@pytest.mark.parametrize("private", ["all", "affine", "stats", "none", ""])
def test_private_setting_that_matches_no_tensor_is_reported(tmp_path, private):
    """A model without batch norm has no tensor that `all` would keep, but an owner who set it expects protection."""
    plain = Schema(tuple(spec for spec in MODEL_SCHEMA.specs if spec.role == "weight"))
    limits = OwnerLimits(tmp_path / "patches", private=private, max_steps=1000, max_epochs=100)
    limits.take(Ready(TASK, plain.digest, 10, plain.specs))
    reported, checkup = limits.status(), quiet_checkup()
    assert reported["keeps_nothing"] is (private in ("all", "affine", "stats"))
    _check_private(reported, checkup)
    (found,) = checkup.findings
    assert found.verdict == ("warn" if private in ("all", "affine", "stats") else "ok")
    assert ("no tensor" in found.detail) is reported["keeps_nothing"]


def test_status_has_policy_source_and_tensors(tmp_path):
    reported = limits_of(tmp_path).status()
    assert reported == {
        "least": "affine",
        "source": "default",
        "tensors": ["bn.weight"],
        "below_default": False,
        "keeps_nothing": False,
        "words": "at least affine: 1 of 2 tensors of the model never leave this device (the default)",
    }
    assert limits_of(tmp_path, private="none").status()["below_default"]
