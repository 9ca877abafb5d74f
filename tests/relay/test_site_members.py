"""The site as its hub sees it: sums, willingness and circles of relays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpatch.relay.site_members import Needs, Presences
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.features import EVALUATE_FEATURE, MASKED_FEATURE, SUMS_FEATURE
from fedpatch.shared.wire.field_types import MAX_COUNT
from fedpatch.shared.wire.messages import MAX_MEMBERS, DeviceState, Envelope, TaskCapability, members_field
from fedpatch.shared.wire.reason_codes import Condition

TASK, SCHEMA = "digits", "5c" * 32


def presences(min_cohort: int = 1, max_members: int = 1, own_id: str = "r0") -> Presences:
    return Presences(own_id, TASK, SCHEMA, max_members=max_members, max_devices=4, min_cohort=min_cohort)


def there(examples: int = 10, members: int = 1, schema: str = SCHEMA, **changes: Any) -> DeviceState:
    tasks = (TaskCapability(TASK, schema, examples, members_field(members)),)
    return replace(DeviceState(True, "b1", tasks=tasks), **changes)


def test_willing_devices_with_the_task_are_summed():
    site = presences()
    site.note("ann", there(10))
    site.note("bob", there(20))
    site.note("other-model", there(40, schema="ab" * 32))
    site.note("paused", there(80, unwilling=Condition.NOT_CHARGING))
    found = site.summary()
    assert (found.members, found.num_examples, found.unwilling) == (2, 30, None)


def test_presence_of_a_relay_can_be_read_whatever_its_devices_claim():
    site = presences(max_members=MAX_MEMBERS)
    site.note("ann", there(MAX_COUNT, members=MAX_MEMBERS))
    site.note("bob", there(MAX_COUNT))
    found = site.summary()
    own = there(found.num_examples, found.members)
    assert decode(encode(Envelope(own))).body == own


def test_members_of_a_relay_below_count_up_to_max_members():
    site = presences(max_members=5)
    site.note("below", there(100, members=5))
    site.note("liar", there(100, members=6))
    assert (site.asked(), site.summary().members) == (["below"], 5)


@pytest.mark.parametrize(("max_members", "asked"), [(5, ["able", "below"]), (1, ["able"])])
def test_masked_round_asks_devices_that_can_mask_and_relays_below_where_these_take_part(max_members, asked):
    site = presences(max_members=max_members)
    site.note("old", there())
    site.note("able", there(features=(MASKED_FEATURE,)))
    site.note("below", there(members=max_members, features=(SUMS_FEATURE,)))
    site.note("paused", there(features=(MASKED_FEATURE,), unwilling=Condition.PAUSED))
    assert site.asked(Needs(frozenset({MASKED_FEATURE}))) == asked


@pytest.mark.parametrize("min_cohort", [1, 3])
def test_site_with_too_few_devices_is_unwilling_with_their_commonest_condition(min_cohort):
    site = presences(min_cohort=min_cohort)
    assert site.summary().unwilling is Condition.PAUSED
    for device, condition in {"a": Condition.METERED, "b": Condition.LOW_BATTERY, "c": Condition.LOW_BATTERY}.items():
        site.note(device, there(unwilling=condition))
    assert site.summary().unwilling is Condition.LOW_BATTERY


def test_last_will_of_a_device_takes_it_out_and_that_of_an_earlier_start_does_not():
    site = presences()
    site.note("ann", there(boot="b2"))
    site.note("ann", DeviceState(False, "b1"))
    assert len(site.asked()) == 1
    site.note("ann", DeviceState(False, "b2"))
    assert not site.asked()


def test_figures_of_a_relay_at_work_do_not_shrink():
    site = presences()
    site.note("ann", there(10))
    site.note("bob", there(20, boot="b2"))
    before = site.summary()
    site.note("bob", DeviceState(False, "b2"))
    assert site.summary().at_least(before) == before
    site.note("cat", there(100))
    found = site.summary().at_least(before)
    assert (found.members, found.num_examples) == (2, 110)


def test_site_measures_where_enough_willing_devices_can():
    site = presences(min_cohort=2)
    knows: dict[str, Any] = {"features": (EVALUATE_FEATURE,)}
    site.note("ann", there(**knows))
    site.note("old", there())
    site.note("busy", there(unwilling=Condition.NOT_CHARGING, **knows))
    assert not site.summary().measures
    site.note("bob", there(**knows))
    assert site.summary().measures
    site.connected = False
    assert not site.summary().measures


def test_site_without_a_connection_is_unwilling():
    site = presences()
    site.note("ann", there())
    site.connected = False
    assert site.summary().unwilling is not None


def test_devices_beyond_max_devices_are_not_remembered():
    site = presences()
    for number in range(6):
        site.note(f"d{number}", there())
    assert len(site.asked()) == 4


def test_path_is_the_own_id_and_the_longest_one_below():
    site = presences(max_members=9)
    site.note("ann", there())
    assert site.summary().path == ("r0",)
    site.note("below", there(path=("r1",)))
    site.note("deep", there(path=("r2", "r3")))
    assert site.summary().path == ("r0", "r2", "r3")


@pytest.mark.parametrize("path", [("r1", "r0"), ("r0",), tuple(f"x{number}" for number in range(8))])
def test_device_whose_path_leads_back_or_is_too_long_is_not_asked(path, caplog):
    site = presences()
    site.note("below", there(path=path))
    site.note("ann", there())
    assert site.circles == {"below"}
    assert len(site.asked()) == 1
    assert site.summary().path == ("r0",)
    assert "circle" in caplog.text
    site.note("below", there(path=("r1",)))
    assert not site.circles


def test_relays_in_a_circle_find_it_after_some_presences():
    """Two relays, each a device of the other's site; the lower one has a longer path to others, which hides the circle."""
    upper, lower = presences(own_id="upper"), presences(own_id="lower")
    lower.note("deep", there(path=("x", "y")))
    for _ in range(10):
        upper.note("lower", there(path=lower.summary().path))
        lower.note("upper", there(path=upper.summary().path))
    assert upper.circles or lower.circles
