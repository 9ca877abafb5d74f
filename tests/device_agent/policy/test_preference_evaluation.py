"""Objections: every preference with its fact met, missed and unknown, alone and together."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.policy.objections import Objection, words_for_wire
from fedpatch.device_agent.policy.preference_rules import ALLOWED_IF_UNKNOWN, FACT_PREFERENCES, OwnUsage
from fedpatch.device_agent.policy.unmet_preferences import Preferences, stricter, unmet_preferences
from fedpatch.device_agent.policy.usage import ALL_SPENT, NOTHING, SPENT_WORDS, Usage
from fedpatch.device_agent.sensors.device_facts import Fact, Facts
from fedpatch.shared.errors import ConfigError
from fedpatch.shared.wire.reason_codes import Condition, LinkKind
from tests.device_agent.owners import WELL, easy, facts, wants

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=timezone(timedelta(hours=1)))
MIB = 2**20


class Case(NamedTuple):
    """A preference, its owner's setting, and values of its fact with which it is met and missed."""

    name: str
    setting: Any
    fact: str
    met: tuple
    missed: tuple
    condition: Condition


CASES = [
    Case("charging", True, "external_power", (True,), (False,), Condition.NOT_CHARGING),
    Case("min_battery", 30, "battery_percent", (30.0, 100.0), (29.9, 0.0), Condition.LOW_BATTERY),
    Case("under_voltage_ok", False, "under_voltage", (False,), (True,), Condition.UNDER_VOLTAGE),
    Case("unmetered", True, "metered", (False,), (True,), Condition.METERED),
    Case("wifi", True, "link", (LinkKind.WIFI, LinkKind.ETHERNET, LinkKind.LOOPBACK), (LinkKind.CELLULAR, LinkKind.OTHER),
         Condition.NOT_WIFI),
    Case("ssids", ("home", "lab"), "ssid", ("home", "lab"), ("neighbours", "Home", ""), Condition.OTHER_SSID),
    Case("max_temperature", 70.0, "temperature_c", (70.0, -20.0), (70.1, 85.0), Condition.TOO_HOT),
    Case("max_load", 0.5, "load_per_cpu", (0.5, 0.0), (0.51, 8.0), Condition.BUSY),
    Case("min_free_memory_mib", 200, "free_memory_mib", (200.0, 4000.0), (199.9, 0.0), Condition.LOW_MEMORY),
    Case("min_free_disk_mib", 500, "free_disk_mib", (500.0, 4000.0), (499.9, 0.0), Condition.LOW_DISK),
    Case("clock_set", True, "clock_set", (True,), (False,), Condition.CLOCK_NOT_SET),
]  # fmt: skip
NUMERIC = [case for case in CASES if get_type_hints(Facts)[case.fact] in (Fact[float], Fact[int])]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def conditions(preferences: Preferences, device=WELL, spent=NOTHING, local=NOON, **offer: Any) -> list[Condition]:
    """The missed conditions."""
    return [one.condition for one in unmet_preferences(preferences, device, spent, local=local, **offer)]


def test_the_table_has_every_preference_that_asks_for_a_fact():
    assert {case.name for case in CASES} == set(FACT_PREFERENCES) == set(ALLOWED_IF_UNKNOWN) - {"quiet_hours"}


@BY_NAME
def test_a_preference_that_is_met_is_no_objection(case):
    for value in case.met:
        assert conditions(easy(**{case.name: case.setting}), facts(**{case.fact: value})) == []


@BY_NAME
def test_a_preference_that_is_missed_is_the_objection(case):
    for value in case.missed:
        for unknown in ([], [f"{case.name}=allow"], [f"{case.name}=deny"]):
            preferences = easy(**{case.name: case.setting, "unknown": unknown})
            assert conditions(preferences, facts(**{case.fact: value})) == [case.condition]


@BY_NAME
def test_preference_with_an_unknown_fact_follows_the_setting_unknown(case):
    """The setting is allow or deny; without it, the documented default holds."""
    device = facts(**{case.fact: None})
    asked = {case.name: case.setting}
    assert conditions(easy(**asked, unknown=[f"{case.name}=allow"]), device) == []
    assert conditions(easy(**asked, unknown=[f"{case.name}=deny"]), device) == [case.condition]
    assert conditions(easy(**asked), device) == ([] if ALLOWED_IF_UNKNOWN[case.name] else [case.condition])


@BY_NAME
def test_a_preference_that_nobody_has_is_no_objection(case):
    for value in (*case.met, *case.missed, None):
        assert conditions(easy(), facts(**{case.fact: value})) == []


@BY_NAME
def test_objection_to_an_unknown_fact_names_cause_and_setting(case):
    """The objection names the reason why the fact is unknown, and the setting that permits work nevertheless."""
    preferences = easy(**{case.name: case.setting}, unknown=[f"{case.name}=deny"])
    (unmet,) = unmet_preferences(preferences, facts(**{case.fact: None}), NOTHING, local=NOON)
    assert f"no {case.fact}" in unmet.words
    assert f'unknown = ["{case.name}=allow"]' in unmet.words


def test_by_default_power_and_an_unmetered_connection_are_demanded():
    everything = {case.fact: case.missed[0] for case in CASES}
    assert set(conditions(wants(), facts(**everything))) == {
        Condition.NOT_CHARGING,
        Condition.METERED,
        Condition.UNDER_VOLTAGE,
    }
    assert conditions(wants(), WELL) == []


@given(st.sets(st.sampled_from(CASES)))
def test_objections_are_sorted_by_the_longest_retry(missed):
    preferences = wants(**{case.name: case.setting for case in CASES})
    # On a mobile network the SSID is missed, too: only WiFi has one.
    expected = {case.condition for case in missed} | (
        {Condition.OTHER_SSID} if any(case.name == "wifi" for case in missed) else set()
    )
    unmet = unmet_preferences(preferences, facts(**{case.fact: case.missed[0] for case in missed}), NOTHING, local=NOON)
    assert {one.condition for one in unmet} == expected
    assert len(unmet) == len(expected)
    assert [one.retry_after_s for one in unmet] == sorted((one.retry_after_s for one in unmet), reverse=True)
    assert all(one.retry_after_s > 0 and one.words for one in unmet)


def test_load_of_the_training_itself_is_no_objection():
    """Training on two of four CPUs must not end because two CPUs are busy."""
    preferences = easy(max_load=0.3, min_free_memory_mib=500)
    device = facts(load_per_cpu=0.7, free_memory_mib=300.0)
    assert conditions(preferences, device) == [Condition.LOW_MEMORY, Condition.BUSY]
    assert conditions(preferences, device, own=OwnUsage(load_per_cpu=0.5, memory_mib=250.0)) == []


@pytest.mark.parametrize(
    ("setting", "found", "missed"),
    [
        ({"ssids": ["home"]}, {"link": LinkKind.ETHERNET, "ssid": None}, []),
        ({"ssids": ["home"]}, {"link": LinkKind.LOOPBACK, "ssid": None}, []),
        ({"ssids": ["home"]}, {"link": LinkKind.CELLULAR, "ssid": "home"}, [Condition.OTHER_SSID]),
        ({"ssids": ["home"]}, {"link": LinkKind.OTHER, "ssid": "home"}, [Condition.OTHER_SSID]),
        ({"unmetered": True}, {"link": LinkKind.LOOPBACK, "metered": True}, []),
        ({"unmetered": True}, {"link": LinkKind.LOOPBACK, "metered": None}, []),
        ({}, {"paused": True}, [Condition.PAUSED]),
        ({}, {"paused": None}, [Condition.PAUSED]),
        ({}, {"paused": False}, []),
    ],
    ids=str,
)
def test_network_and_pause_count_by_the_kind_of_the_link(setting, found, missed):
    """The name of a WiFi network does not matter on a cable; an unknown pause counts as a pause."""
    assert conditions(easy(**setting), facts(**found)) == missed


def test_task_outside_the_allowed_tasks_is_declined():
    assert conditions(easy(allowed_tasks=["digits", "mnist"]), task="mnist") == []
    assert conditions(easy(allowed_tasks=["digits", "mnist"]), task="cifar10") == [Condition.TASK_NOT_ALLOWED]
    assert conditions(easy(), task="cifar10") == []


def test_objection_of_quiet_hours_has_their_end():
    preferences = easy(quiet_hours=["08:00-12:30"])
    (unmet,) = unmet_preferences(preferences, WELL, NOTHING, local=NOON)
    assert unmet == Objection(Condition.QUIET_HOURS, "quiet hours, until Sat 12:30", 1800.0, exact=True)
    assert conditions(preferences, local=NOON + timedelta(minutes=30)) == []


def test_quiet_hours_without_end_name_no_day_on_which_they_end():
    (unmet,) = unmet_preferences(easy(quiet_hours=["00:00-24:00"]), WELL, NOTHING, local=NOON)
    assert (unmet.words, unmet.retry_after_s) == ("quiet hours, which do not end within 7 days", 604_800.0)


@pytest.mark.parametrize(
    ("hours", "by_the_clock"), [("08:00-12:30", [Condition.QUIET_HOURS]), ("20:00-21:00", [])], ids=["quiet", "not"]
)
def test_quiet_hours_with_an_unset_clock_are_unknown_and_where_allowed_judged_by_the_clock_there_is(
    hours, by_the_clock
):
    """A clock of which nothing is known is used."""
    device = facts(clock_set=False)
    assert conditions(easy(quiet_hours=[hours]), device) == [Condition.QUIET_HOURS]
    assert conditions(easy(quiet_hours=[hours], unknown=["quiet_hours=allow"]), device) == by_the_clock
    assert conditions(easy(quiet_hours=["20:00-21:00"]), facts(clock_set=None)) == []


@pytest.mark.parametrize(
    ("setting", "within", "beyond", "condition"),
    [
        ({"max_rounds_per_day": 3}, Usage(rounds=2), Usage(rounds=3), Condition.ROUNDS_SPENT),
        (
            {"max_mib_per_day": 5},
            Usage(traffic_bytes=5 * MIB - 1),
            Usage(traffic_bytes=5 * MIB),
            Condition.TRAFFIC_SPENT,
        ),
        ({"max_minutes_per_day": 2}, Usage(training_s=119.0), Usage(training_s=120.0), Condition.MINUTES_SPENT),
    ],
)
def test_a_daily_allowance_ends_at_midnight(setting, within, beyond, condition):
    assert conditions(easy(**setting), spent=within) == []
    assert conditions(easy(), spent=beyond) == []
    (unmet,) = unmet_preferences(easy(**setting), WELL, beyond, local=NOON)
    assert (unmet.condition, unmet.retry_after_s, unmet.exact) == (condition, 12 * 3600.0, True)


def test_a_round_that_would_not_fit_into_the_day_is_declined():
    spent = Usage(traffic_bytes=3 * MIB)
    assert conditions(easy(max_mib_per_day=5), spent=spent, expected_bytes=2 * MIB) == []
    assert conditions(easy(max_mib_per_day=5), spent=spent, expected_bytes=2 * MIB + 1) == [Condition.TRAFFIC_SPENT]


def test_a_round_that_has_begun_is_not_one_too_many():
    """The round itself is already counted; traffic and minutes beyond their limits end it."""
    preferences = easy(max_rounds_per_day=3, max_mib_per_day=5, max_minutes_per_day=2)
    just = Usage(rounds=3, traffic_bytes=5 * MIB, training_s=119.0)
    assert conditions(preferences, spent=just, working=True) == []
    beyond = just.plus(Usage(traffic_bytes=1, training_s=1.0))
    assert set(conditions(preferences, spent=beyond, working=True)) == {
        Condition.TRAFFIC_SPENT,
        Condition.MINUTES_SPENT,
    }


@BY_NAME
def test_stricter_preferences_miss_whatever_the_usual_ones_miss(case):
    preferences = easy(**{case.name: case.setting})
    for value in case.missed:
        assert conditions(stricter(preferences), facts(**{case.fact: value})) == [case.condition]


@pytest.mark.parametrize(
    ("setting", "fact", "not_yet", "enough"),
    [
        ({"min_battery": 30}, "battery_percent", 34.9, 35.0),
        ({"min_battery": 98}, "battery_percent", 98.9, 99.0),
        ({"min_battery": 100}, "battery_percent", 99.0, 100.0),
        ({"max_temperature": 70.0}, "temperature_c", 65.1, 65.0),
        ({"max_temperature": 0.0}, "temperature_c", -4.9, -5.0),
        ({"max_load": 0.5}, "load_per_cpu", 0.46, 0.45),
        ({"min_free_memory_mib": 200}, "free_memory_mib", 219.9, 220.0),
        ({"min_free_disk_mib": 500}, "free_disk_mib", 549.9, 550.0),
    ],
)
def test_a_value_must_come_back_by_a_margin(setting, fact, not_yet, enough):
    """The margin never exceeds the possible range: a full battery meets every limit."""
    after = stricter(easy(**setting))
    assert len(conditions(after, facts(**{fact: not_yet}))) == 1
    assert conditions(after, facts(**{fact: enough})) == []


@pytest.mark.parametrize("case", NUMERIC, ids=[case.name for case in NUMERIC])
def test_preference_about_a_number_has_a_margin(case):
    """Without one, a value that fluctuates at its limit would stop and start the work again and again."""
    preferences, device = easy(**{case.name: case.setting}), facts(**{case.fact: float(case.setting)})
    assert conditions(preferences, device) == []
    assert conditions(stricter(preferences), device) == [case.condition]


def test_words_for_the_wire_hold_no_measured_value():
    device = facts(ssid="Annas Netz", temperature_c=81.0, battery_percent=7.0)
    unmet = unmet_preferences(easy(ssids=["home"], max_temperature=70.0, min_battery=20), device, NOTHING, local=NOON)
    assert any("Annas Netz" in one.words for one in unmet)
    assert words_for_wire(unmet) == "low battery, other ssid, too hot"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"unknown": ["chargin=allow"]}, "did you mean 'charging'?"),
        ({"unknown": ["charging=maybe"]}, "must end in =allow or =deny"),
        ({"unknown": ["charging"]}, "must end in =allow or =deny"),
        ({"unknown": ["wifi=allow", "wifi=deny"]}, "set to allow and to deny"),
        ({"unknown": ["max_rounds_per_day=allow"]}, "unknown preference 'max_rounds_per_day'"),
        ({"quiet_hours": ["late"]}, "is not a time of day"),
        ({"on_loss": "stop"}, "known: abandon, finish, pause"),
        ({"loss_after_s": 3.1}, "above 3"),
    ],
)
def test_impossible_preference_is_refused_with_a_remedy(setting, words):
    with pytest.raises(ConfigError) as caught:
        wants(**setting)
    assert caught.value.problems[0].startswith(f"--{next(iter(setting)).replace('_', '-')}: ")
    assert words in caught.value.problems[0]


def test_allowance_that_counts_as_spent_after_a_restore_says_so():
    found = unmet_preferences(easy(max_rounds_per_day=5), WELL, ALL_SPENT, local=NOON)
    assert [(one.condition, one.words) for one in found] == [(Condition.ROUNDS_SPENT, SPENT_WORDS)]
