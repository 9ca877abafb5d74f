"""The combined state of several power supplies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.sensors.collect import FactCollector
from fedpatch.device_agent.sensors.device_facts import Confidence
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.kernel_power import (
    ATTRIBUTES,
    battery_percent,
    external_power,
    parse_supply,
    read_supplies,
)
from fedpatch.device_agent.sensors.power_facts import parse_percent
from tests.device_agent.sensors.scenes import BATTERY, MAINS, Scene

OFF = MAINS | {"online": "0"}
USB = {"type": "USB", "online": "1"}
WORDS = st.sampled_from(
    ["Mains", "USB", "Battery", "UPS", "Device", "System", "Full", "Charging", "Discharging", "0", "1"]
)


def _supplies(*attributes):
    return [one for i, each in enumerate(attributes) if (one := parse_supply(f"s{i}", each))]


def _battery(status: str, **more: str) -> dict[str, str]:
    return {"type": "Battery", "status": status, **more}


@pytest.mark.parametrize(
    ("supplies", "value", "confidence"),
    [
        ([], True, "assumed"),
        ([MAINS], True, "measured"),
        ([OFF], True, "assumed"),
        ([OFF, BATTERY], False, "measured"),
        ([MAINS, BATTERY], True, "measured"),
        ([OFF, USB, BATTERY], True, "measured"),
        ([OFF, _battery("Charging")], True, "measured"),
        ([OFF, _battery("Full")], False, "measured"),
        ([_battery("Discharging")], False, "measured"),
        ([_battery("Full")], True, "measured"),
        ([_battery("Not charging")], True, "measured"),
        ([_battery("Full"), _battery("Discharging")], False, "measured"),
        ([_battery("Charging"), _battery("Discharging")], True, "measured"),
        ([_battery("Unknown")], None, "unknown"),
        ([_battery("")], None, "unknown"),
        ([{"type": "UPS", "status": "Discharging"}], False, "measured"),
        ([_battery("Discharging", present="0")], True, "assumed"),
        ([{"type": "USB", "scope": "Device", "online": "1"}, BATTERY], False, "measured"),
        ([{"type": "Mains", "online": "?"}, BATTERY], False, "measured"),
        ([{"online": "1"}, BATTERY], False, "measured"),
    ],
)
def test_external_power_by_its_table(supplies, value, confidence):
    """External power is present with an inlet that is online, with a battery that charges, or without a battery."""
    fact = external_power(_supplies(*supplies))
    assert (fact.value, fact.confidence) == (value, confidence)


@pytest.mark.parametrize(
    ("batteries", "percent"),
    [
        ([], None),
        ([{"capacity": "55"}], 55.0),
        ([{"capacity": "250"}], None),
        ([{"capacity": "-1", "energy_now": "30", "energy_full": "40"}], 75.0),
        ([{"charge_now": "100", "charge_full": "400"}], 25.0),
        ([{"charge_now": "410", "charge_full": "400"}], 100.0),
        ([{"energy_now": "30", "energy_full": "0"}], None),
        # 10 of 20 and 60 of 80: 70 of 100, though both capacities would give 62.5.
        (
            [
                {"capacity": "50", "energy_now": "10", "energy_full": "20"},
                {"capacity": "75", "energy_now": "60", "energy_full": "80"},
            ],
            70.0,
        ),
        ([{"capacity": "50", "energy_now": "10", "energy_full": "20"}, {"capacity": "70"}], 60.0),
        ([{"capacity": "50"}, {}], None),
    ],
)
def test_charge_of_several_batteries_is_their_total(batteries, percent):
    fact = battery_percent(_supplies(*({"type": "Battery"} | one for one in batteries)))
    assert fact.value == percent
    assert fact.known == (fact.confidence is Confidence.MEASURED)


@given(st.lists(st.dictionaries(st.sampled_from(ATTRIBUTES), WORDS | st.text(max_size=30)), max_size=4))
def test_no_supply_is_too_strange_to_be_read(attributes):
    supplies = _supplies(*attributes)
    assert external_power(supplies).source
    percent = battery_percent(supplies).value
    assert percent is None or 0.0 <= percent <= 100.0


@given(st.text(max_size=20) | st.floats().map(str))
def test_a_percentage_is_between_0_and_100(text):
    value = parse_percent(text)
    assert value is None or 0.0 <= value <= 100.0


@pytest.mark.parametrize(("code", "value"), [(0, True), (1, False), (2, None)])
def test_systemd_is_queried_when_the_battery_has_no_status(tmp_path, code, value):
    """systemd-ac-power answers by its exit code; a code other than 0 and 1 is no answer."""
    scene = Scene(tmp_path)
    scene.supply("BAT0", BATTERY | {"status": "Unknown"})
    scene.program("systemd-ac-power", f"exit {code}")
    power = read_supplies(SysFs(scene.root))
    assert (power.external.value, power.battery_percent.value) == (value, 71.0)


def test_systemd_is_not_asked_where_the_kernel_knows(tmp_path):
    scene = Scene(tmp_path)
    scene.supply("AC", OFF)
    scene.supply("BAT0", BATTERY)
    scene.program("systemd-ac-power", f"touch {tmp_path}/asked")
    assert read_supplies(SysFs(scene.root)).external.value is False
    assert not (tmp_path / "asked").exists()


def test_without_sysfs_nothing_is_assumed(tmp_path):
    """Unreadable power supplies do not mean that there is none."""
    facts = FactCollector(broker_host="x", state_dir=tmp_path, root=tmp_path, interface=lambda: "lo").observe()
    assert facts.external_power.confidence is Confidence.UNKNOWN
    assert "/sys/class" in facts.external_power.source
