"""The history of the device: its lines, their bytes, and what is deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.state import history as module
from fedpatch.device_agent.state.history import (
    DECLINED,
    KEEP_DAYS,
    REPEAT_S,
    STOPPED,
    WORKED,
    DeviceHistory,
    read_history,
    read_with_damage,
)
from fedpatch.shared.mqtt.traffic import Traffic

KEY = JobKey("a-run", 1, 3, "digits")
DAY_S = 86_400.0


class Clock:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=6))
def test_bytes_of_all_entries_are_those_that_the_process_moved(tmp_path_factory, moves):
    directory = tmp_path_factory.mktemp("state")
    history, traffic = DeviceHistory(directory, "mqtt://hub", lambda: 1e9), Traffic()
    for sent, received in moves:
        traffic = traffic.plus(Traffic(sent, received))
        history.note(WORKED, "committed", traffic, KEY, "ab")
    entries = read_history(directory)
    assert sum(one.sent_bytes for one in entries) == traffic.sent_bytes
    assert sum(one.received_bytes for one in entries) == traffic.received_bytes


def test_entry_has_run_round_broker_and_model(tmp_path, clock):
    DeviceHistory(tmp_path, "mqtt://hub", clock).note(WORKED, "committed", Traffic(5, 6), KEY, "ab")
    (entry,) = read_history(tmp_path)
    assert (entry.run, entry.round, entry.task, entry.broker, entry.model) == ("a-run", 3, "digits", "mqtt://hub", "ab")
    assert (tmp_path / "history.jsonl").stat().st_mode & 0o077 == 0


def test_same_decline_is_written_once_an_hour_with_the_number_of_those_before(tmp_path, clock):
    history = DeviceHistory(tmp_path, "", clock)
    for _ in range(4):
        history.note(DECLINED, "unwilling: quiet hours", Traffic(), KEY)
    clock.now += REPEAT_S
    history.note(DECLINED, "unwilling: quiet hours", Traffic(), KEY)
    assert [one.repeats for one in read_history(tmp_path)] == [0, 3]


def test_entries_are_deleted_after_the_stated_days(tmp_path, clock):
    def begin() -> DeviceHistory:
        return DeviceHistory(tmp_path, "", clock, lambda: True)

    begin().note(STOPPED, "old", Traffic())
    clock.now += (KEEP_DAYS - 1) * DAY_S
    begin().note(STOPPED, "new", Traffic())
    assert [one.words for one in read_history(tmp_path)] == ["old", "new"]
    clock.now += 2 * DAY_S
    begin()
    assert [one.words for one in read_history(tmp_path)] == ["new"]


@pytest.mark.parametrize("is_set", [False, None], ids=["not set", "unknown"])
def test_no_entry_is_deleted_by_a_clock_that_no_time_server_has_set(tmp_path, clock, is_set):
    DeviceHistory(tmp_path, "", clock).note(STOPPED, "old", Traffic())
    clock.now += 2 * KEEP_DAYS * DAY_S
    DeviceHistory(tmp_path, "", clock, lambda: is_set)
    assert [one.words for one in read_history(tmp_path)] == ["old"]


def test_damaged_lines_are_counted_and_deleted_at_the_next_start(tmp_path, clock):
    DeviceHistory(tmp_path, "", clock).note(STOPPED, "whole", Traffic())
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(bytes(800) + b"\n{\n")
    assert [len(read_with_damage(tmp_path)[0]), read_with_damage(tmp_path)[1]] == [1, 2]
    assert read_with_damage(tmp_path / "absent") == ([], 0)
    DeviceHistory(tmp_path, "", clock)
    assert read_with_damage(tmp_path)[1] == 0


def test_large_file_loses_its_older_half(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 2000)
    history = DeviceHistory(tmp_path, "", clock)
    for index in range(40):
        history.note(WORKED, f"outcome {index}", Traffic())
    assert (tmp_path / "history.jsonl").stat().st_size <= 2000 + 300
    assert read_history(tmp_path)[-1].words == "outcome 39"


def test_damaged_line_is_left_out(tmp_path, clock):
    DeviceHistory(tmp_path, "", clock).note(WORKED, "first", Traffic())
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b"{half\n\xff\n[1]\n")
    DeviceHistory(tmp_path, "", clock).note(WORKED, "second", Traffic())
    assert [one.words for one in read_history(tmp_path)] == ["first", "second"]


def test_full_disk_costs_the_entry_only(tmp_path, clock, caplog):
    history = DeviceHistory(tmp_path / "absent", "", clock)
    history.note(WORKED, "committed", Traffic())
    assert "this entry of the history is lost" in caplog.text


def test_line_that_a_power_cut_has_cut_takes_no_later_entry_with_it(tmp_path, clock):
    history = DeviceHistory(tmp_path, "mqtt://hub", clock)
    for round in (1, 2):
        history.note(WORKED, "committed", Traffic(), replace(KEY, round=round))
    path = tmp_path / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-25])
    DeviceHistory(tmp_path, "mqtt://hub", clock).note(WORKED, "committed", Traffic(), replace(KEY, round=3))
    assert [one.round for one in read_history(tmp_path)] == [1, 3]
