"""All facts at once: for any behaviour of a source, the facts arrive, and soon."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.sensors import collect, commands, timeouts
from fedpatch.device_agent.sensors.collect import FactCollector
from fedpatch.device_agent.sensors.device_facts import Confidence, Facts
from fedpatch.device_agent.sensors.wifi import parse_iw
from fedpatch.shared.errors import UsageError
from tests.device_agent.sensors.scenes import BATTERY, MAINS, Scene
from tests.support.examples import examples

PATIENCE_S = 90.0
BYTES = st.binary(max_size=40)


def test_this_machine_has_facts(tmp_path):
    facts = FactCollector(broker_host="127.0.0.1", state_dir=tmp_path).observe()
    for field in dataclasses.fields(Facts):
        fact = getattr(facts, field.name)
        assert fact.source, field.name
        assert fact.known == (fact.confidence is not Confidence.UNKNOWN), field.name
    assert facts.link.known and facts.free_disk_mib.known and facts.free_memory_mib.known


def test_a_driver_that_hangs_takes_only_its_own_facts_along(tmp_path, monkeypatch):
    """A read that never ends: its facts are unknown, the others are known, and the source is not read twice meanwhile."""
    monkeypatch.setattr(collect, "SOURCE_LIMIT_S", 0.3)
    scene = Scene(tmp_path)
    scene.supply("BAT0", BATTERY)
    stuck = tmp_path / "sys/class/power_supply/BAT0/capacity"
    stuck.unlink()
    os.mkfifo(stuck)
    observer = scene.observer()
    for _ in range(3):
        facts = observer.observe()
        assert (facts.external_power.value, facts.battery_percent.value) == (None, None)
        assert "power has not answered" in facts.external_power.source
    assert sum(one.name == "facts-power" for one in threading.enumerate()) == 1
    monkeypatch.setattr(collect, "SOURCE_LIMIT_S", PATIENCE_S)
    assert observer.observe().free_disk_mib.known
    _heal(stuck, scene)
    until = time.monotonic() + PATIENCE_S
    while not (facts := observer.observe()).external_power.known:
        assert time.monotonic() < until, "a source that answers again is not asked again"
    assert (facts.external_power.value, facts.battery_percent.value) == (False, 71.0)


def _heal(stuck: Path, scene: Scene) -> None:
    """Release a process that waits for the pipe, then put a file in its place."""
    with stuck.open("wb"):
        stuck.unlink()
    scene.supply("BAT0", BATTERY)


def test_a_ups_program_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "LIMIT_S", 0.3)
    scene = Scene(tmp_path)
    program = scene.program("hat", "exec sleep 1000")
    facts = scene.observer(ups=f"command:{program}").observe()
    assert not facts.external_power.known
    assert "has not" in facts.external_power.source
    assert facts.free_memory_mib.known


def test_a_ups_that_gives_itself_up_each_time_delays_one_look(tmp_path, monkeypatch):
    """The owner's pause is seen at once meanwhile, and once the UPS answers, its facts are known again."""
    monkeypatch.setattr(timeouts, "QUICK_S", 0.1)
    monkeypatch.setattr(commands, "LIMIT_S", 0.3)
    scene = Scene(tmp_path)
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)
    program = scene.program("hat", f"[ -p {stuck} ] && cat {stuck}\necho power=on")
    observer = scene.observer(ups=f"command:{program}")
    assert not observer.observe().external_power.known
    monkeypatch.setattr(commands, "LIMIT_S", PATIENCE_S)
    (scene.state_dir / "pause").touch()
    facts = observer.observe()  # the UPS has its long limit again, but no look waits for it
    assert facts.paused.value and "the UPS has not answered for" in facts.external_power.source
    with stuck.open("wb"):
        stuck.unlink()
    until = time.monotonic() + PATIENCE_S
    while not (facts := observer.observe()).external_power.known:
        assert time.monotonic() < until, "a UPS that answers again is not believed"
        time.sleep(0.02)
    assert facts.external_power.value is True


def test_a_directory_that_may_not_be_read_is_not_an_empty_one(tmp_path, monkeypatch):
    """Hidden power supplies do not mean that the device runs on mains."""
    scene = Scene(tmp_path)
    listing = os.listdir

    def refuses(path):
        if str(path).endswith("power_supply"):
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(os, "listdir", refuses)
    fact = scene.observer().observe().external_power
    assert not fact.known and "Permission denied" in fact.source


def test_nothing_is_written(tmp_path):
    scene = Scene(tmp_path)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    scene.observer().observe()
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_word_for_no_ups_is_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match="apc"):
        Scene(tmp_path).observer(ups="apc")


@examples(25)
@given(st.lists(BYTES, min_size=12, max_size=12), st.sampled_from(["eth0", "wlan0", "..", ""]))
def test_no_kernel_is_too_strange(texts, route):
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder))
        scene.supply("AC", MAINS)
        scene.supply("BAT0", BATTERY)
        scene.card("eth0", driver="x")
        scene.zone(0, "cpu-thermal", "1")
        scene.chip(0, "rpi_volt", in0_lcrit_alarm="0")
        scene.file("sys/devices/platform/soc/soc:firmware/get_throttled", "0")
        files = sorted(path for path in scene.root.rglob("*") if path.is_file())
        for path, text in zip(files, texts * 3, strict=False):
            path.write_bytes(text)
        facts = scene.observer(route).observe()
        percent = facts.battery_percent.value
    assert all(getattr(facts, field.name).source for field in dataclasses.fields(Facts))
    assert percent is None or 0.0 <= percent <= 100.0


@given(st.text(max_size=80), st.sampled_from(["", "\tSSID: "]))
def test_whatever_iw_prints_is_a_name_or_none(text, before):
    assert parse_iw(before + text).isprintable()
