"""The round of a site begins at once, whenever the relay has accepted the request for it."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.limit_syntax import Limits
from fedpatch.coordinator.rounds.held_devices import DRAINED
from fedpatch.coordinator.rounds.missing_devices import missing_text
from fedpatch.coordinator.rounds.round_journal import RoundJournal, RoundStart
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import ModelPublished, RunStarted, TimePassed
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.relay.round_player import site_engine
from fedpatch.relay.site_members import Needs, Presences
from fedpatch.shared.wire.features import (
    DEVICE_FEATURES,
    EVALUATE_FEATURE,
    MASKED_FEATURE,
    SIGNED_FEATURE,
    SUMS_FEATURE,
)
from fedpatch.shared.wire.masking_messages import ThresholdRule
from fedpatch.shared.wire.messages import ENCODINGS, DeviceState, TaskCapability, members_field
from fedpatch.shared.wire.plan_terms import PLAN_TERMS
from fedpatch.shared.wire.reason_codes import Condition
from tests.support.masked_group import terms_of
from tests.support.specs import SCHEMA, TASK, model, run_spec

ABLE = (*DEVICE_FEATURES, MASKED_FEATURE, SIGNED_FEATURE)
GROUP_MIN = 3
LIMITS = Limits(max_members=50)


def site_of(states: dict[str, DeviceState], min_cohort: int = 1, **changes: Any) -> Presences:
    site = Presences("r1", TASK, SCHEMA, max_members=50, max_devices=50, min_cohort=min_cohort, **changes)
    for device, state in states.items():
        site.note(device, state)
    return site


def there(number: int = 0, members: int = 1, schema: str = SCHEMA, **changes: Any) -> DeviceState:
    tasks = (TaskCapability(TASK, schema, changes.pop("examples", 10), members_field(members)),)
    return replace(DeviceState(True, f"b{number}", "0.1", tasks, ENCODINGS, features=ABLE), **changes)


def four(**first: Any) -> dict[str, DeviceState]:
    return {f"pi-{number}": there(number, **(first if number == 0 else {})) for number in range(4)}


def begun(site: Presences, needs: Needs = Needs(), **terms: Any) -> Engine:  # noqa: B008
    """The engine of a round of the site, right after its start."""
    terms = {"min_cohort": site.min_cohort, "devices": site.min_cohort, "wait_s": 5.0, "max_failed_rounds": 1} | terms
    if needs.group_min:
        given = terms_of(16, group_min=GROUP_MIN, strict=SIGNED_FEATURE in needs.features)
        terms["unmask_s"] = 10.0
        terms["secure"] = SecurePolicy(16, GROUP_MIN, ThresholdRule.HALF, 8, 1.0, 600, 5.0, time.time, given=given)
    holds = dict.fromkeys(site.held, DRAINED)
    earlier = terms.pop("earlier", ())
    spec = run_spec(quorum=terms.pop("quorum", 0.8), rounds=7, first_round=7, limits=LIMITS, **terms)
    engine = site_engine(spec, site, needs, earlier=earlier, unfinished=None, jitter=random.Random(1), holds=holds)
    engine.handle(RunStarted(), 0.0)
    if engine.open is not None:
        engine.handle(
            ModelPublished(model(), secure=None if spec.secure is None else spec.secure.given, version=1), 0.0
        )
    return engine


def cohort(engine: Engine) -> set[str]:
    assert engine.open is not None, missing_text(engine.fleet, engine.required_devices(), 0.0)
    return set(engine.open.round.participants)


def test_device_that_is_held_back_is_neither_counted_nor_asked():
    site = site_of(four(), held=frozenset({"pi-0"}))
    assert (site.summary().members, site.summary().num_examples) == (3, 30)
    assert cohort(begun(site)) == {"pi-1", "pi-2", "pi-3"}


def test_site_whose_devices_are_all_held_back_is_unwilling():
    site = site_of(four(), held=frozenset(four()))
    assert site.summary().unwilling is Condition.PAUSED
    assert not site.asked()


@pytest.mark.parametrize("unwilling", range(1, 4))
def test_round_is_meant_for_the_willing_devices_that_the_hub_knows_of(unwilling):
    states = four()
    for number in range(unwilling):
        states[f"pi-{number}"] = there(number, unwilling=Condition.NOT_CHARGING)
    site = site_of(states)
    assert site.summary().members == 4 - unwilling
    assert len(cohort(begun(site))) == 4 - unwilling


@pytest.mark.parametrize(
    "other",
    [{"examples": 0}, {"schema": "ab" * 32}, {"members": 51}],
    ids=["no examples", "another model", "more members than max_members"],
)
def test_device_that_the_hub_does_not_know_of_is_not_asked(other):
    site = site_of(four(**other))
    assert site.summary().num_examples == 30
    assert cohort(begun(site)) == {"pi-1", "pi-2", "pi-3"}


@pytest.mark.parametrize("term", [*PLAN_TERMS, EVALUATE_FEATURE])
def test_device_without_a_feature_of_the_request_is_left_out(term):
    lacking = tuple(word for word in ABLE if word != term)
    site = site_of(four(features=lacking))
    needs = Needs(frozenset({term}))
    assert sum(site.summary().able(needs).values()) == 3
    assert cohort(begun(site, needs)) == {"pi-1", "pi-2", "pi-3"}


def test_masked_round_leaves_out_a_device_that_cannot_mask():
    site = site_of(four(features=DEVICE_FEATURES))
    assert cohort(begun(site, Needs(frozenset({MASKED_FEATURE}), GROUP_MIN))) == {"pi-1", "pi-2", "pi-3"}


def test_masked_round_leaves_out_devices_too_few_for_a_group_beside_a_relay():
    site = site_of({**four(members=20, features=(*ABLE, SUMS_FEATURE))})
    site.note("pi-3", DeviceState(False, "b3"))
    needs = Needs(frozenset({MASKED_FEATURE}), GROUP_MIN)
    assert sum(one.members * count for one, count in site.summary().able(needs).items()) == 20
    assert cohort(begun(site, needs)) == {"pi-0"}


def test_unfinished_round_knows_a_device_at_work_that_is_unwilling_by_now():
    site = site_of(four(unwilling=Condition.PAUSED))
    start = RoundStart(RoundJournal(7, 4, tuple(four()), base=""))
    engine = site_engine(run_spec(limits=LIMITS), site, Needs(), unfinished=start, jitter=random.Random(1), holds={})
    assert engine.fleet.boot("pi-0") == "b0"


def test_absent_device_is_asked_when_it_is_due_and_does_not_count_before_it_reports():
    site = site_of(four())
    missed = RoundRecord(6, "failed", 4, 4, 0, 3, absent={"pi-0": 1})
    first = begun(site, earlier=[missed]).open
    assert first is not None
    assert (set(first.round.participants), first.round.needed) == (set(four()), 3)
    again = begun(site, earlier=[missed, RoundRecord(6, "aggregated", 4, 4, 0, 3, absent={"pi-0": 2})])
    assert cohort(again) == {"pi-1", "pi-2", "pi-3"}


def test_absent_devices_are_asked_again_after_the_wait_where_min_cohort_needs_them():
    site = site_of({f"pi-{number}": there(number) for number in range(5)}, min_cohort=4)
    missed = RoundRecord(6, "aggregated", 5, 5, 0, 3, absent={"pi-0": 2, "pi-1": 2})
    engine = begun(site, earlier=[missed])
    assert engine.open is None
    engine.handle(TimePassed(), 5.0)
    assert engine.open is not None


@pytest.mark.parametrize("leaves_between", [False, True])
def test_absent_device_that_has_restarted_is_asked_in_the_next_round(leaves_between):
    site = site_of(four())
    missed = RoundRecord(6, "aggregated", 4, 4, 0, 3, absent={"pi-0": 4})
    assert "pi-0" not in cohort(begun(site, earlier=[missed]))
    if leaves_between:
        site.note("pi-0", replace(site.states["pi-0"], online=False))
    site.note("pi-0", there(1))
    assert cohort(begun(site, earlier=[missed])) == set(four())


def test_masked_round_waits_for_the_absent_device_that_its_group_needs():
    site = site_of({f"pi-{number}": there(number) for number in range(GROUP_MIN)})
    missed = RoundRecord(6, "aggregated", GROUP_MIN, GROUP_MIN, 0, GROUP_MIN - 1, absent={"pi-0": 2})
    engine = begun(site, Needs(frozenset({MASKED_FEATURE}), GROUP_MIN), earlier=[missed], quorum=0.5)
    assert engine.open is None
    engine.handle(TimePassed(), 5.0)
    assert engine.spec.secure is not None
    engine.handle(ModelPublished(model(), secure=engine.spec.secure.given, version=1), 5.0)
    assert cohort(engine) == set(site.states)


OLD = tuple(word for word in DEVICE_FEATURES if word not in PLAN_TERMS)

states = st.builds(
    there,
    number=st.integers(0, 3),
    members=st.sampled_from([1, 1, 1, 5, 60]),
    examples=st.sampled_from([10, 10, 10, 0]),
    schema=st.sampled_from([SCHEMA, SCHEMA, SCHEMA, "ab" * 32]),
    unwilling=st.sampled_from([None, None, Condition.METERED]),
    features=st.sampled_from([ABLE, ABLE, (*ABLE, SUMS_FEATURE), DEVICE_FEATURES, (*OLD, MASKED_FEATURE), ()]),
)


@given(
    devices=st.lists(states, min_size=2, max_size=9),
    held=st.sets(st.integers(0, 8), max_size=3),
    min_cohort=st.integers(1, 3),
    quorum=st.sampled_from([0.5, 0.8, 1.0]),
    features=st.sampled_from([(), (), ("prox",), (EVALUATE_FEATURE,), ("finish", EVALUATE_FEATURE)]),
    masks=st.sampled_from([(), (), (MASKED_FEATURE,), (MASKED_FEATURE, SIGNED_FEATURE)]),
)
def test_round_that_enough_devices_can_take_part_in_begins_at_once_with_these_and_no_others(
    devices, held, min_cohort, quorum, features, masks
):
    states = {f"d{number}": state for number, state in enumerate(devices)}
    site = site_of(states, min_cohort, held=frozenset(f"d{number}" for number in held))
    needs = Needs(frozenset({*features, *masks}), GROUP_MIN if masks else 0)
    able, summary = site.summary().able(needs), site.summary()
    members = sum(one.members * count for one, count in able.items())
    assert members <= summary.members
    if summary.unwilling is None and sum(able.values()) >= min_cohort and members >= needs.group_min:
        asked = cohort(begun(site, needs, quorum=quorum, evaluates_only=EVALUATE_FEATURE in features))
        assert asked == set(site.asked(needs))
        assert len(asked) == sum(able.values())
