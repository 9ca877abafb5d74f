"""Voltage, throttling and temperature, from any source that has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.temperature import hottest, parse_temperature, read_temperature
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.device_agent.sensors.under_voltage import parse_throttled, read_supply


@pytest.mark.parametrize(
    ("bits", "under_voltage", "throttled"),
    [
        ("0x0", False, False),
        ("0x1", True, False),
        ("0x2", False, False),  # a capped frequency alone is how a Pi saves power
        ("0x4", False, True),
        ("0x8", False, True),
        ("0x50000", False, False),  # has occurred since boot, but is over
        ("0x50005", True, True),
    ],
)
def test_firmware_bits_give_current_under_voltage_and_throttling(scene, bits, under_voltage, throttled):
    scene.program("vcgencmd", f'[ "$1" = get_throttled ] && echo throttled={bits}')
    supply = read_supply(SysFs(scene.root))
    assert (supply.under_voltage.value, supply.throttled.value) == (under_voltage, throttled)


def test_a_file_of_the_kernel_is_asked_before_a_program(scene):
    scene.file("sys/devices/platform/soc/soc:firmware/get_throttled", "50005")
    scene.program("vcgencmd", f"touch {scene.root}/asked; echo throttled=0x0")
    supply = read_supply(SysFs(scene.root))
    assert (supply.under_voltage.value, supply.throttled.value) == (True, True)
    assert not (scene.root / "asked").exists()


@pytest.mark.parametrize(("chip", "under_voltage"), [("rpi_volt", True), ("nct6775", None)])
def test_the_kernels_alarm_is_that_of_one_chip_and_needs_no_firmware(scene, chip, under_voltage):
    """On a chip of another name, in0 may be anything."""
    scene.chip(3, chip, in0_lcrit_alarm="1")
    supply = read_supply(SysFs(scene.root))
    assert (supply.under_voltage.value, supply.throttled.value) == (under_voltage, None)


def test_a_vcgencmd_that_may_not_ask_is_no_answer(scene):
    """A user outside the group video gets no answer; the remedy is named."""
    scene.program("vcgencmd", "echo VCHI initialization failed; exit 255")
    assert "group video" in read_supply(SysFs(scene.root)).under_voltage.source


def test_the_hottest_zone_of_the_processor_counts(scene):
    scene.zone(0, "acpitz", "99000")
    scene.zone(1, "x86_pkg_temp", "61000")
    scene.zone(2, "cpu-thermal", "-274000")
    scene.zone(10, "soc_thermal", "63500")
    scene.chip(0, "coretemp", temp1_input="62000")
    scene.chip(1, "nvme", temp1_input="85000")
    assert read_temperature(SysFs(scene.root)).value == 63.5


def test_the_firmware_knows_the_temperature_too(scene):
    scene.program("vcgencmd", 'echo "temp=48.3\'C"')
    assert read_temperature(SysFs(scene.root)).value == 48.3


def test_a_machine_without_sensors_has_no_temperature(scene):
    with pytest.raises(FactUnavailable, match="no thermal zone"):
        read_temperature(SysFs(scene.root))


@given(st.text(max_size=30), st.sampled_from(["", "throttled=0x", "temp="]), st.sampled_from(["", "'C"]))
def test_any_text_is_read_or_passed_over(text, before, after):
    whole = before + text + after
    bits, celsius = parse_throttled(whole), parse_temperature(whole)
    assert bits is None or 0 <= bits < 1 << 32
    assert celsius is None or -55 <= celsius <= 150
    fact = hottest([("zone", "cpu-thermal", whole), ("zone", whole, text)])
    assert fact.value is None or -55 <= fact.value <= 150
