"""Whole machines, as their kernels show them, and the facts that are found on each."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.sensors.device_facts import Confidence
from fedpatch.shared.wire.reason_codes import LinkKind
from tests.device_agent.sensors.pisugar_server import PiSugarServer
from tests.device_agent.sensors.scenes import BATTERY, MAINS, MEMINFO, MOUSE, Scene

MEASURED, ASSUMED, UNKNOWN = Confidence.MEASURED, Confidence.ASSUMED, Confidence.UNKNOWN


def _pi(scene: Scene, *, alarm: str = "0", bits: str = "0x0", temperature: str = "48250") -> None:
    scene.card("wlan0", devtype="wlan", driver="brcmfmac", wireless=True)
    scene.card("eth0", driver="bcmgenet")
    scene.chip(0, "cpu_thermal", temp1_input=temperature)
    scene.chip(1, "rpi_volt", in0_lcrit_alarm=alarm)
    scene.zone(0, "cpu-thermal", temperature)
    scene.program("vcgencmd", f"echo 'throttled={bits}'")


def _found(fact):
    return fact.value, fact.confidence


def test_a_pi_on_its_mains_adapter(scene):
    """It has no power supply that can be read, so mains are assumed; most other facts are measured."""
    _pi(scene)
    facts = scene.observer("eth0").observe()
    assert _found(facts.external_power) == (True, ASSUMED)
    assert _found(facts.battery_percent) == (None, UNKNOWN)
    assert _found(facts.under_voltage) == (False, MEASURED)
    assert _found(facts.throttled) == (False, MEASURED)
    assert _found(facts.temperature_c) == (48.25, MEASURED)
    assert _found(facts.link) == (LinkKind.ETHERNET, MEASURED)
    assert _found(facts.metered) == (False, ASSUMED)
    assert _found(facts.load_per_cpu) == (0.125, MEASURED)
    assert _found(facts.free_memory_mib) == (2048.0, MEASURED)
    assert facts.free_disk_mib.value > 0 and facts.free_disk_mib.confidence is MEASURED
    assert _found(facts.paused) == (False, MEASURED)


def test_a_pi_with_a_weak_adapter(scene):
    """The kernel's alarm shows under-voltage, the firmware throttling, the sensor a high temperature."""
    _pi(scene, alarm="1", bits="0x5000d", temperature="81900")
    facts = scene.observer("wlan0").observe()
    assert _found(facts.under_voltage) == (True, MEASURED)
    assert _found(facts.throttled) == (True, MEASURED)
    assert _found(facts.temperature_c) == (81.9, MEASURED)
    assert _found(facts.link) == (LinkKind.WIFI, MEASURED)


@pytest.mark.parametrize(
    ("supplies", "power", "percent"),
    [
        ({"ACAD": MAINS | {"online": "0"}, "BAT1": BATTERY}, (False, MEASURED), (71.0, MEASURED)),
        ({"ACAD": MAINS, "BAT1": BATTERY | {"status": "Full", "capacity": "100"}}, (True, MEASURED), (100.0, MEASURED)),
        ({}, (True, ASSUMED), (None, UNKNOWN)),
    ],
    ids=["laptop on its battery", "laptop on mains", "desktop"],
)
def test_battery_of_a_wireless_mouse_is_not_the_machines(scene, supplies, power, percent):
    for name, attributes in {**supplies, "hidpp_battery_0": MOUSE}.items():
        scene.supply(name, attributes)
    facts = scene.observer().observe()
    assert (_found(facts.external_power), _found(facts.battery_percent)) == (power, percent)


def test_a_pi_with_pisugar(scene, socket_folder):
    _pi(scene)
    with PiSugarServer(socket_folder / "s", battery_power_plugged="true", battery="83.4") as board:
        observer = scene.observer(ups=board.ups)
        facts = observer.observe()
        assert (_found(facts.external_power), _found(facts.battery_percent)) == ((True, MEASURED), (83.4, MEASURED))
        board.answers["battery_power_plugged"] = "false"
        assert _found(observer.observe().external_power) == (False, MEASURED)


def test_a_pi_with_a_ups_that_nut_watches(scene):
    _pi(scene)
    scene.program("upsc", '[ "$1" = ups@10.0.0.2 ] && printf "battery.charge: 64\\nups.status: OB DISCHRG\\n"')
    facts = scene.observer(ups="nut:ups@10.0.0.2").observe()
    assert (_found(facts.external_power), _found(facts.battery_percent)) == ((False, MEASURED), (64.0, MEASURED))


def test_a_pi_on_a_4g_stick(scene):
    scene.card("wwan0", kind="65534", devtype="wwan", driver="qmi_wwan")
    facts = scene.observer("wwan0").observe()
    assert _found(facts.link) == (LinkKind.CELLULAR, MEASURED)
    assert _found(facts.metered) == (True, ASSUMED)
    assert _found(facts.ssid) == (None, UNKNOWN)


@pytest.mark.parametrize("driver", ["rndis_host", "cdc_ether", "cdc_ncm", "ipheth"])
def test_a_pi_that_a_phone_lends_its_network(scene, driver):
    """Except for its driver it looks like an Ethernet adapter, so mobile data are only assumed."""
    scene.card("usb0", devtype="", driver=driver)
    facts = scene.observer("usb0").observe()
    assert _found(facts.link) == (LinkKind.CELLULAR, ASSUMED)
    assert _found(facts.metered) == (True, ASSUMED)


def test_a_container_that_sees_the_hosts_interfaces(scene):
    """An interface that the kernel's files do not show is another kind of link, with unknown metering."""
    scene.card("docker0", devtype="bridge")
    facts = scene.observer("eth0").observe()
    assert _found(facts.link) == (LinkKind.OTHER, ASSUMED)
    assert _found(facts.metered) == (None, UNKNOWN)


def test_a_device_that_its_owner_paused(scene):
    observer = scene.observer()
    pause = scene.file("var/lib/agent/pause", "")
    assert _found(observer.observe().paused) == (True, MEASURED)
    pause.unlink()
    assert _found(observer.observe().paused) == (False, MEASURED)


def test_unplugging_shows_in_the_next_observation(scene):
    scene.supply("AC", MAINS)
    scene.supply("BAT0", BATTERY | {"status": "Charging"})
    observer = scene.observer()
    assert observer.observe().external_power.value is True
    scene.supply("AC", {"online": "0"})
    scene.supply("BAT0", {"status": "Discharging", "capacity": "70"})
    facts = observer.observe()
    assert (facts.external_power.value, facts.battery_percent.value) == (False, 70.0)


def test_all_facts_of_a_machine_have_the_values_of_its_files(scene):
    """The loopback is no WiFi network, so `ssid` alone is unknown."""
    scene.whole()
    facts = {name: _found(fact) for name, fact in vars(scene.observer("lo").observe()).items()}
    free_disk_mib, confidence = facts.pop("free_disk_mib")  # of this machine
    assert free_disk_mib > 0 and confidence is MEASURED
    assert facts == {
        "external_power": (True, MEASURED),
        "battery_percent": (71.0, MEASURED),
        "under_voltage": (False, MEASURED),
        "throttled": (False, MEASURED),
        "temperature_c": (48.25, MEASURED),
        "link": (LinkKind.LOOPBACK, MEASURED),
        "ssid": (None, UNKNOWN),
        "metered": (False, ASSUMED),
        "load_per_cpu": (0.125, MEASURED),
        "free_memory_mib": (2048.0, MEASURED),
        "clock_set": (True, MEASURED),
        "paused": (False, MEASURED),
    }


def test_each_line_of_the_meminfo_of_a_scene_has_another_value():
    values = [line.split()[1] for line in MEMINFO.splitlines()]
    assert len(set(values)) == len(values)
