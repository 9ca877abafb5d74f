"""The device's account of differential privacy, and the owner's limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.job_effects import JobKey, SpoolUpdate
from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.privacy_budget import PrivacyBudget, privacy_in_words
from fedpatch.device_agent.runtime.agent_composition import privacy_of
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.privacy_account import ACCOUNT_NAME, DevicePrivacyAccount
from fedpatch.device_agent.state.update_spool import NOTE
from fedpatch.shared.errors import StateError
from fedpatch.shared.privacy.gaussian import compose, epsilon_of, mu_of
from fedpatch.shared.privacy.skellam import Release, epsilon_of_releases, steps_of
from fedpatch.shared.wire.features import COORDINATOR_FEATURES
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import Decline, WorkRequest
from fedpatch.shared.wire.privacy_messages import GAUSSIAN, MAX_STEPS, SKELLAM, PrivacyTerms
from fedpatch.shared.wire.reason_codes import DeclineReason
from tests.device_agent.disk_change_killer import Guillotine
from tests.device_agent.effect_runners import performer_of
from tests.device_agent.fake_link import Wire
from tests.device_agent.jobs import KEY, REQUEST, replies, requested
from tests.device_agent.owners import READY
from tests.support.masked_group import terms_of
from tests.support.specs import TASKS, envelope_of, update

DELTA = 1e-5
ROUND_EPSILON = epsilon_of(mu_of(2.0), DELTA)


def noisy(noise_multiplier: float = 2.0) -> WorkRequest:
    """A request with differential privacy."""
    return replace(
        REQUEST, privacy=PrivacyTerms(GAUSSIAN, noise_multiplier, 1.0, DELTA, 10), features=COORDINATOR_FEATURES
    )


def budget_of(directory: Path, **limits: Any) -> PrivacyBudget:
    return PrivacyBudget(directory, fleet="lab", **limits)


def manifest(number: int) -> Any:
    return replace(update(), digest=f"{number:064x}")


def reason(decision: AdmissionDecision | None) -> DeclineReason | None:
    return None if decision is None else decision.reason


def test_request_that_exceeds_max_epsilon_is_declined_and_counts_nothing(tmp_path):
    budget = budget_of(tmp_path, max_epsilon=epsilon_of(mu_of(2.0, 2), DELTA))
    for number in (1, 2):
        assert budget.refusal(noisy()) is None
        budget.count(replace(KEY, round=number), noisy(), manifest(number))
    assert reason(budget.refusal(noisy())) is DeclineReason.PRIVACY_SPENT
    assert budget.status()["rounds"] == 2
    assert reason(budget_of(tmp_path, max_epsilon=1.0).refusal(noisy())) is DeclineReason.PRIVACY_SPENT


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, DeclineReason.UNSUPPORTED),
        ({"required": True}, DeclineReason.PRIVACY_REQUIRED),
        ({"max_epsilon": 8.0}, DeclineReason.PRIVACY_REQUIRED),
    ],
)
def test_evaluate_request_with_terms_is_declined_because_no_noise_covers_a_measurement(tmp_path, limits, expected):
    assert reason(budget_of(tmp_path, **limits).refusal(replace(noisy(), evaluate=True))) is expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"required": True}, DeclineReason.PRIVACY_REQUIRED),
        ({"max_epsilon": 8.0}, DeclineReason.PRIVACY_REQUIRED),
    ],
)
def test_plain_evaluate_request_is_declined_only_where_the_owner_requires_privacy(tmp_path, limits, expected):
    assert reason(budget_of(tmp_path, **limits).refusal(replace(REQUEST, evaluate=True))) is expected


@pytest.mark.parametrize(
    ("limits", "request_", "leaves"),
    [
        ({"required": True}, REQUEST, False),
        ({"max_epsilon": 8.0}, REQUEST, False),
        ({"required": True}, noisy(), True),
        ({}, REQUEST, True),
    ],
)
def test_update_without_privacy_from_before_the_owner_required_it_does_not_leave(tmp_path, limits, request_, leaves):
    """The update waited on the disk while the agent was restarted with another setting."""
    owner = OwnerLimits(tmp_path / "patches", max_steps=1000, max_epochs=100, privacy=budget_of(tmp_path, **limits))
    owner.take(READY)
    assert (owner.why_not_send(request_, update()) == "") is leaves


def test_limit_holds_over_all_runs(tmp_path):
    budget = budget_of(tmp_path, max_epsilon=ROUND_EPSILON)
    budget.count(KEY, noisy(), manifest(1))
    budget.count(replace(KEY, run="another"), noisy(), manifest(2))
    status = budget.status()
    assert [one["rounds"] for one in status["runs"]] == [1, 1]
    assert status["epsilon"] == pytest.approx(epsilon_of(mu_of(2.0, 2), DELTA))
    assert reason(budget.refusal(noisy())) is DeclineReason.PRIVACY_SPENT


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"required": True}, DeclineReason.PRIVACY_REQUIRED),
        ({"max_epsilon": 8.0}, DeclineReason.PRIVACY_REQUIRED),
    ],
)
def test_request_without_privacy_is_declined_where_the_owner_limits_epsilon(tmp_path, limits, expected):
    assert reason(budget_of(tmp_path, **limits).refusal(REQUEST)) is expected


def test_unknown_mechanism_is_declined_as_unsupported(tmp_path):
    request = replace(noisy(), privacy=PrivacyTerms("laplace", 2.0, 1.0, DELTA, 10))
    assert reason(budget_of(tmp_path).refusal(request)) is DeclineReason.UNSUPPORTED


def masked_and_noisy(steps: int = 300, mechanism: str = SKELLAM, **secure: Any) -> WorkRequest:
    """A request of a masked round with noise of the devices."""
    terms: SecureTerms | None = terms_of(32, **{"bits": 16, **secure})
    privacy = PrivacyTerms(mechanism, 2.0, 1.0, DELTA, 10, steps)
    return replace(noisy(), privacy=privacy, secure=terms, encoding="masked-u16")


def test_rounds_with_noise_of_the_devices_are_counted_by_their_own_bound(tmp_path):
    release = Release(2.0, 300)
    budget = budget_of(tmp_path, max_epsilon=epsilon_of_releases({release: 2}, DELTA))
    for number in (1, 2):
        assert budget.refusal(masked_and_noisy()) is None
        budget.count(replace(KEY, round=number), masked_and_noisy(), manifest(number))
    assert reason(budget.refusal(masked_and_noisy())) is DeclineReason.PRIVACY_SPENT
    assert budget.status()["epsilon"] == pytest.approx(epsilon_of_releases({release: 2}, DELTA))
    assert budget.status()["epsilon"] > epsilon_of(mu_of(2.0, 2), DELTA)
    budget.count(KEY, noisy(), manifest(3))
    assert DevicePrivacyAccount(tmp_path).releases() == {release: 2, Release(2.0): 1}


@pytest.mark.parametrize(
    "request_",
    [
        replace(masked_and_noisy(), secure=None),
        replace(noisy(), secure=terms_of(32, bits=16)),
        masked_and_noisy(steps=0),
        masked_and_noisy(mechanism=GAUSSIAN),
        masked_and_noisy(bits=8),
        masked_and_noisy(keep=2),
        masked_and_noisy(clip=2.0),
    ],
    ids=["no masks", "central", "no grid", "gaussian", "8 bits", "keep", "other clip"],
)
def test_terms_that_do_not_fit_masked_rounds_are_declined_as_unsupported(tmp_path, request_):
    assert reason(budget_of(tmp_path).refusal(request_)) is DeclineReason.UNSUPPORTED


def with_noise(noise_multiplier: float, steps: int) -> WorkRequest:
    request = masked_and_noisy(steps)
    assert request.privacy is not None
    return replace(request, privacy=replace(request.privacy, noise_multiplier=noise_multiplier))


@pytest.mark.parametrize(("noise_multiplier", "steps"), [(1e6, 1), (1e4, MAX_STEPS), (2.0, steps_of(2.0, 32) + 1)])
def test_noise_that_does_not_fit_the_values_of_a_masked_sum_is_declined_as_unsupported(
    tmp_path, noise_multiplier, steps
):
    """A device would need hours, and all its memory, for noise of such a deviation."""
    budget = budget_of(tmp_path)
    assert reason(budget.refusal(with_noise(noise_multiplier, steps))) is DeclineReason.UNSUPPORTED
    assert budget.refusal(with_noise(2.0, steps_of(2.0, 32))) is None


@pytest.mark.parametrize("noise_multiplier", [1e-100, 1e-200, 5e-324])
def test_noise_near_zero_is_declined_where_the_owner_limits_epsilon(tmp_path, noise_multiplier):
    request = with_noise(noise_multiplier, 300)
    assert budget_of(tmp_path).refusal(request) is None
    assert reason(budget_of(tmp_path, max_epsilon=8.0).refusal(request)) is DeclineReason.PRIVACY_SPENT


@pytest.mark.parametrize("word", [DeclineReason.PRIVACY_SPENT, DeclineReason.PRIVACY_REQUIRED])
@pytest.mark.parametrize("knows", [True, False])
def test_decline_word_is_sent_only_to_a_coordinator_that_knows_it(word, knows):
    request = replace(REQUEST, features=COORDINATOR_FEATURES if knows else ())
    decision = AdmissionDecision(False, "spent", reason=word)
    [answer] = replies(Job(max_blob_bytes=10_000).handle(requested(envelope_of(request), TASKS, decision), 0.0))
    assert answer == Decline(word if knows else DeclineReason.UNSUPPORTED, "spent")


def test_decline_holds_no_figure_of_the_privacy_account(tmp_path):
    budget = budget_of(tmp_path, max_epsilon=ROUND_EPSILON)
    budget.count(KEY, noisy(), manifest(1))
    decision = budget.refusal(noisy())
    assert decision is not None
    assert not any(char.isdigit() for char in decision.why)


def spooling(directory: Path, budget: PrivacyBudget) -> Any:
    limits = OwnerLimits(directory / "patches", max_steps=1, max_epochs=1, privacy=budget)
    runner = performer_of(directory, Wire(), None, limits=limits)
    return lambda: runner.run_effect(SpoolUpdate(KEY, update(), noisy()))


def test_kill_before_any_write_of_an_offer_never_leaves_an_uncounted_update(tmp_path):
    """After the restart, an update with a note would be offered."""
    fatal, counted_without_note = 1, 0
    while True:
        directory = tmp_path / str(fatal)
        directory.mkdir()
        changes = Guillotine(fatal).run(spooling(directory, budget_of(directory)))
        noted = (directory / "spool" / NOTE).exists()
        counted = sum(one.rounds for one in DevicePrivacyAccount(directory).runs)
        assert counted or not noted, f"killed before change {fatal}"
        counted_without_note += counted and not noted
        if changes < fatal:
            break
        fatal += 1
    assert (noted, counted) == (True, 1)
    assert counted_without_note > 0


def test_update_that_cannot_be_counted_is_not_spooled(tmp_path):
    (tmp_path / ACCOUNT_NAME).write_bytes(b"damaged")
    [failed] = spooling(tmp_path, budget_of(tmp_path))()
    assert "move it away to count from zero" in failed.detail
    assert not (tmp_path / "spool" / NOTE).exists()


def test_same_update_counts_once_and_a_repeated_round_again(tmp_path):
    for number in (1, 1, 2):
        budget_of(tmp_path).count(KEY, noisy(), manifest(number))
    budget_of(tmp_path).count(replace(KEY, epoch=KEY.epoch + 1), noisy(), manifest(2))
    assert [one.rounds for one in DevicePrivacyAccount(tmp_path).runs] == [2]


def test_committed_update_that_is_offered_again_counts_again(tmp_path):
    """A coordinator asks for it again only if it has lost it, and then draws new noise, as its own book counts."""
    budget = budget_of(tmp_path)
    budget.count(KEY, noisy(), manifest(1))
    budget.count(replace(KEY, epoch=2), noisy(), manifest(1))
    assert budget.status()["rounds"] == 1
    budget.committed(KEY.run)
    budget_of(tmp_path).count(replace(KEY, epoch=3), noisy(), manifest(1))
    assert budget_of(tmp_path).status()["rounds"] == 2


def test_owner_who_demands_privacy_has_a_limit_of_epsilon_without_naming_one(tmp_path):
    """Noise of a millionth of the clip is no differential privacy."""
    settings = AgentSettings(data="shard:0/10", dp_required=True, state_dir=tmp_path)
    assert settings.epsilon_limit == 10.0
    assert reason(privacy_of(settings, tmp_path).refusal(noisy(1e-6))) is DeclineReason.PRIVACY_SPENT
    assert AgentSettings(data="shard:0/10", dp_required=True, max_epsilon=50.0).epsilon_limit == 50.0
    assert AgentSettings(data="shard:0/10").epsilon_limit is None


def test_round_without_privacy_leaves_no_file(tmp_path):
    budget_of(tmp_path).count(KEY, REQUEST, manifest(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"fedpatch privacy ledger 1\n" + bytes(40)])
def test_damaged_account_declines_private_rounds_and_status_names_it(tmp_path, damage):
    (tmp_path / ACCOUNT_NAME).write_bytes(damage)
    with pytest.raises(StateError, match="cannot be read"):
        DevicePrivacyAccount(tmp_path)
    budget = budget_of(tmp_path)
    assert reason(budget.refusal(noisy())) is DeclineReason.STORAGE
    assert budget.refusal(REQUEST) is None
    [line] = privacy_in_words(budget.status())
    assert ACCOUNT_NAME in line
    (tmp_path / ACCOUNT_NAME).unlink()
    assert budget.refusal(noisy()) is None


def test_status_shows_epsilon_limit_and_runs(tmp_path):
    budget = budget_of(tmp_path, max_epsilon=8.0)
    budget.count(KEY, noisy(), manifest(1))
    lines = privacy_in_words(budget.status())
    assert f"epsilon {ROUND_EPSILON:.3g} of at most 8 at delta 1e-05" in lines[0]
    assert KEY.run in lines[1]


def test_status_omits_privacy_without_private_rounds_and_limit(tmp_path):
    assert privacy_in_words(budget_of(tmp_path).status()) == []
    assert privacy_in_words({}) == []


rounds_of = st.lists(st.tuples(st.sampled_from(["one", "two"]), st.sampled_from([0.5, 2.0, 9.0])), max_size=12)


@given(rounds_of)
def test_account_composes_all_rounds_of_all_runs_in_any_order(tmp_path_factory, rounds):
    directory = tmp_path_factory.mktemp("account")
    for number, (run, noise_multiplier) in enumerate(rounds):
        key = JobKey(run, 1, number + 1, "task")
        budget_of(directory).count(key, noisy(noise_multiplier), manifest(number))
    account = DevicePrivacyAccount(directory)
    composed = epsilon_of(compose(mu_of(one) for _, one in rounds), DELTA)
    assert epsilon_of_releases(account.releases(), DELTA) == pytest.approx(composed)
    assert sum(one.rounds for one in account.runs) == len(rounds)
