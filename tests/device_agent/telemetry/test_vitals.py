"""The vitals of a device, and how often it publishes them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.sensors.device_facts import Fact, Facts
from fedpatch.device_agent.telemetry.vitals import LEAST_S, REPEAT_S, VitalsPace, matters, vitals_of
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.reason_codes import LinkKind
from fedpatch.shared.wire.vitals import LastRound, Vitals
from tests.device_agent.owners import WELL, facts

NUMBERS = st.none() | st.floats()
ANSWERS = st.none() | st.booleans()
ROUND = LastRound("r", 3, 20.0, 2.0)


def _facts() -> st.SearchStrategy[Facts]:
    """Arbitrary values of sources."""
    kinds = {
        "link": st.none() | st.sampled_from(LinkKind),
        "ssid": st.none() | st.text(max_size=5),
        **dict.fromkeys(("external_power", "under_voltage", "throttled", "metered", "clock_set", "paused"), ANSWERS),
    }
    return st.builds(Facts, **{one.name: kinds.get(one.name, NUMBERS).map(_fact) for one in fields(Facts)})


def _fact(value: object) -> Fact:
    return Fact.unknown("no source") if value is None else Fact(value, "somewhere")


@given(_facts())
def test_whatever_is_found_fits_the_wire(found):
    envelope = Envelope(vitals_of(found, ROUND))
    assert decode(encode(envelope)) == envelope


def test_vitals_hold_health_and_no_location():
    sent = vitals_of(facts(ssid="at home", battery_percent=71.4, temperature_c=48.26, free_memory_mib=900.7), ROUND)
    assert sent == Vitals(True, 0.71, False, False, 48.3, LinkKind.WIFI, 0.1, 900 * 2**20, 9000 * 2**20, ROUND)
    assert b"at home" not in encode(Envelope(sent))


def test_unknown_facts_are_none_in_vitals():
    nothing = facts(**dict.fromkeys((one.name for one in fields(Facts)), None))
    assert vitals_of(nothing) == Vitals()


@pytest.mark.parametrize(
    ("change", "matter"),
    [
        ({"external_power": False}, True),
        ({"under_voltage": True}, True),
        ({"throttled": None}, True),
        ({"link": LinkKind.CELLULAR}, True),
        ({"temperature_c": 45.0}, True),
        ({"temperature_c": None}, True),
        ({"battery_percent": 95.0}, True),
        ({"temperature_c": 44.0, "battery_percent": 96.0}, False),
        ({"load_per_cpu": 3.0, "free_memory_mib": 10.0, "free_disk_mib": 10.0}, False),
    ],
)
def test_some_changes_matter_to_people(change, matter):
    assert matters(vitals_of(WELL), vitals_of(facts(**change))) is matter


def test_a_round_that_is_over_matters():
    assert matters(vitals_of(WELL), vitals_of(WELL, ROUND))
    assert not matters(vitals_of(WELL, ROUND), vitals_of(WELL, ROUND))


@given(st.lists(st.tuples(st.floats(0.1, 90.0), st.booleans()), max_size=60))
def test_messages_are_neither_too_many_nor_too_few(looks):
    """At most one message for each LEAST_S and one more, no gap above REPEAT_S, and a change as soon as that is allowed."""
    pace, now, sent_power, times = VitalsPace(), 0.0, None, []
    for pause_s, power in looks:
        now += pause_s
        vitals = pace.next(facts(external_power=power), None, now)
        if vitals is not None:
            times.append(now)
            sent_power = power
        assert now < times[-1] + REPEAT_S
        if power is not sent_power:
            assert len(times) > 1 and now < times[-2] + 2 * LEAST_S
    for first, since in enumerate(times):
        assert all(
            count <= (until - since) / LEAST_S + 1.001 for count, until in enumerate(times[first + 1 :], start=1)
        )


def test_the_first_change_need_not_wait():
    pace = VitalsPace()
    rounds = [None, *(replace(ROUND, round=number) for number in range(1, 4))]
    sent = [pace.next(WELL, last, now) is not None for now, last in enumerate(rounds)]
    assert sent == [True, True, False, False]
    assert pace.next(WELL, rounds[3], LEAST_S) is not None


def test_new_coordinator_gets_vitals_at_once():
    pace = VitalsPace()
    assert pace.next(None, None, 0.0) is None
    assert pace.next(WELL, None, 1.0) is not None
    assert pace.next(WELL, None, 2.0) is None
    pace.forget()
    assert pace.next(WELL, None, 3.0) is not None
    assert pace.next(WELL, ROUND, 4.0) is not None
