"""Load, memory, disk, clock and the pause file."""

from __future__ import annotations

import ctypes
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.sensors.clock import parse_chrony, read_clock
from fedpatch.device_agent.sensors.device_facts import Confidence
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.host import (
    parse_available_mib,
    parse_cpus,
    parse_load,
    read_disk,
    read_load,
    read_memory,
    read_pause,
)
from tests.device_agent.sensors.scenes import Scene

NOW_S = 1_790_000_000.0  # in 2026


def test_load_is_shared_among_the_cpus(scene):
    assert read_load(SysFs(scene.root)).value == 0.125


@pytest.mark.parametrize("text", ["", "nan 0 0", "-1 0 0", "inf", "busy"])
def test_a_load_that_is_none_is_unknown(scene, text):
    scene.file("proc/loadavg", text)
    assert not read_load(SysFs(scene.root)).known


def test_memory_is_what_is_available(scene):
    assert read_memory(SysFs(scene.root)).value == 2048.0
    scene.file("proc/meminfo", "MemFree: 17 kB")
    assert not read_memory(SysFs(scene.root)).known


def test_the_disk_is_that_of_the_state_directory_even_before_it_is_made(tmp_path):
    disk = read_disk(tmp_path / "not" / "yet")
    assert disk.source == str(tmp_path)
    assert disk.value == pytest.approx(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize / 2**20, rel=0.2)


def test_a_pause_file_counts_whatever_it_is(tmp_path):
    assert read_pause(tmp_path / "pause").value is False
    (tmp_path / "pause").symlink_to("nowhere")
    assert read_pause(tmp_path / "pause").value is True


def test_a_state_directory_that_is_a_file_is_no_crash(tmp_path):
    (tmp_path / "state").write_text("")
    assert read_pause(tmp_path / "state" / "pause").value is False
    assert read_disk(tmp_path / "state" / "deeper").source == str(tmp_path / "state")


@pytest.mark.parametrize(
    ("cpus", "count"), [("0-3", 4), ("0", 1), ("0-3,6", 5), ("0-1,4-7", 6), ("", None), ("3-0", None), ("a", None)]
)
def test_a_list_of_cpus_is_counted(cpus, count):
    assert parse_cpus(cpus) == count


def _rtc(scene: Scene, *, seconds: float, used: str = "1") -> None:
    scene.file("sys/class/rtc/rtc0/hctosys", used)
    scene.file("sys/class/rtc/rtc0/since_epoch", f"{seconds:.0f}")


def test_a_clock_is_set_once_timesyncd_has_left_word(scene):
    scene.file("run/systemd/timesync/synchronized", "")
    clock = read_clock(SysFs(scene.root), NOW_S)
    assert (clock.value, clock.confidence) == (True, Confidence.MEASURED)


@pytest.mark.parametrize(("status", "value"), [("Normal", True), ("Insert second", True), ("Not synchronised", False)])
def test_chrony_knows_whether_it_follows_a_server(scene, status, value):
    scene.program("chronyc", f'echo "Stratum         : 3"; echo "Leap status     : {status}"')
    assert read_clock(SysFs(scene.root), NOW_S).value is value


def test_a_clock_before_2025_is_not_set(scene):
    scene.file("run/systemd/timesync/synchronized", "")
    _rtc(scene, seconds=0)
    assert read_clock(SysFs(scene.root), 1_500_000_000.0).value is False


@pytest.mark.parametrize(
    ("seconds", "used", "value"),
    [(NOW_S - 7200, "1", True), (NOW_S, "0", None), (60, "1", None), (NOW_S - 200_000, "1", None)],
)
def test_a_clock_that_runs_without_power_is_assumed_right(scene, seconds, used, value):
    """The system must have been set from it and still agree; a Pi 5 without a clock battery starts in 1970."""
    _rtc(scene, seconds=seconds, used=used)
    clock = read_clock(SysFs(scene.root), NOW_S)
    assert clock.value is value
    assert clock.confidence is (Confidence.ASSUMED if value else Confidence.UNKNOWN)


class _Kernel:
    """A C library whose kernel reports this status of its clock; None: it has no adjtimex."""

    def __init__(self, status: int | None) -> None:
        if status is not None:
            self.adjtimex = lambda space: _write_status(space, status)


def _write_status(space: ctypes.Array[ctypes.c_char], status: int) -> int:
    ctypes.c_int.from_buffer(space, 5 * ctypes.sizeof(ctypes.c_long)).value = status
    return 5 if status & 0x40 else 0  # TIME_ERROR, and TIME_OK


@pytest.mark.parametrize(("status", "value"), [(0, True), (0x2001, True), (0x40, False), (None, None)])
def test_the_kernel_knows_whether_a_time_service_has_set_its_clock(scene, monkeypatch, status, value):
    """By its flags (adjtimex, STA_UNSYNC); a chrony that cannot be run does not make the fact unknown."""
    scene.program("chronyc", "exit 1").write_bytes(b"\0")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: _Kernel(status))
    tree = SysFs(scene.root)
    tree.live = True
    assert read_clock(tree, NOW_S).value is value


def test_a_disk_that_is_nowhere_is_not_looked_for_for_ever(tmp_path, monkeypatch):
    def nowhere(_):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "statvfs", nowhere)
    with pytest.raises(FileNotFoundError):
        read_disk(tmp_path / "state")


def test_clock_of_this_machine_is_read_from_the_kernel(tmp_path):
    clock = read_clock(SysFs(tmp_path.__class__("/")), time.time())
    assert clock.source
    assert clock.value in (True, False, None)


@given(
    st.binary(max_size=80).map(lambda some: some.decode("utf-8", "replace")), st.sampled_from(["", "MemAvailable: "])
)
def test_any_text_is_a_figure_or_none(text, before):
    whole = before + text
    assert (parse_load(whole) or 0.0) >= 0.0
    assert (parse_available_mib(whole) or 0.0) >= 0.0
    assert (parse_cpus(whole) or 1) > 0
    assert parse_chrony(whole) in (True, False, None)
