"""The reading thread: a registry that is created later, changed, replaced or damaged, and the status of a coordinator."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

from fedpatch.coordinator.console.feed import Feed, RegistryReader
from fedpatch.coordinator.console.snapshot import Snapshot
from fedpatch.coordinator.observability.status_follower import PATIENCE_S, StatusFollower
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.mqtt.events import Disconnected, Received
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.topics import run_status
from tests.coordinator.console.consoles import FLEET, filled, served, wait_until
from tests.coordinator.observability.statuses import collecting, fleet
from tests.coordinator.registry_builders import change, new_run, seen
from tests.coordinator.report.report_runs import record


def test_registry_may_come_later(tmp_path):
    reader = RegistryReader(tmp_path / "state", FLEET)
    empty = reader.look(Snapshot(), 0.0)
    assert empty == Snapshot() and reader.problem == ""
    with filled(tmp_path / "state", rounds=2):
        assert reader.look(empty, 0.5) is empty  # the reader looks for a registry once a second
        assert len(reader.look(empty, 2.0).rounds) == 2


def test_added_round_is_appended_and_an_idle_registry_is_not_read(tmp_path):
    reader = RegistryReader(tmp_path, FLEET)
    with filled(tmp_path, rounds=2) as registry:
        first = reader.look(Snapshot(), 0.0)
        assert reader.look(first, 1.0) is first
        registry.rounds.finish(registry.run("last").id, record(3))
        second = reader.look(first, 2.0)
        assert [row["n"] for row in second.rounds] == [1, 2, 3]
        assert second.rounds_since == first.rounds_since


def test_resume_with_repeated_rounds_replaces_all(tmp_path):
    reader = RegistryReader(tmp_path, FLEET)
    with filled(tmp_path, rounds=3) as registry:
        first = reader.look(Snapshot(), 0.0)
        run = registry.run("last").id
        registry.rounds.roll_back(run, 1)
        registry.next_epoch(run)
        second = reader.look(first, 1.0)
        assert [row["n"] for row in second.rounds] == [1] and second.rounds_since > first.rounds_since


def test_other_fleets_stay_out(tmp_path):
    with filled(tmp_path, devices=2) as registry:
        new_run(registry, 1.9e9, settings={"fleet": "garden"})
        seen(registry, "pi-9", fleet="garden")
        snapshot = RegistryReader(tmp_path, FLEET).look(Snapshot(), 0.0)
        assert len(snapshot.runs) == 1 and set(snapshot.devices) == {"lab/pi-1", "lab/pi-2"}
        assert len(RegistryReader(tmp_path, None).look(Snapshot(), 0.0).devices) == 3


def _reader_of_older(state_dir, **contents):
    """Read a registry with the tables of the version before, as a coordinator of that version would leave it."""
    with filled(state_dir, **contents):
        pass
    change(state_dir / REGISTRY_FILE, "ALTER TABLE devices DROP COLUMN relay", "PRAGMA user_version = 11")
    reader = RegistryReader(state_dir, FLEET)
    return reader, reader.look(Snapshot(), 0.0)


def test_registry_of_an_earlier_version_is_followed_once_a_run_has_migrated_it(tmp_path):
    reader, first = _reader_of_older(tmp_path, rounds=1)
    assert reader.problem == "" and [row["n"] for row in first.rounds] == [1]
    assert reader.look(first, 2.0) is first
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        registry.rounds.finish(registry.run("last").id, record(2))
        second = reader.look(first, 4.0)
        assert [row["n"] for row in second.rounds] == [1, 2]
        registry.rounds.finish(registry.run("last").id, record(3))
        assert [row["n"] for row in reader.look(second, 6.0).rounds] == [1, 2, 3]


def test_registry_of_an_earlier_version_is_followed_while_its_coordinator_writes(tmp_path):
    reader, first = _reader_of_older(tmp_path, devices=1)
    with closing(sqlite3.connect(tmp_path / REGISTRY_FILE)) as coordinator:
        coordinator.execute("UPDATE devices SET version = '0.0.9'")
        coordinator.commit()  # into SQLite's log
        assert reader.look(first, 0.5) is first  # the copy is made once a second
        assert reader.look(first, 2.0).devices[f"{FLEET}/pi-1"] != first.devices[f"{FLEET}/pi-1"]


def test_damaged_registry_leaves_the_page_and_names_the_problem(tmp_path):
    with filled(tmp_path, rounds=2):
        pass
    reader = RegistryReader(tmp_path, FLEET)
    first = reader.look(Snapshot(), 0.0)
    place = tmp_path / REGISTRY_FILE
    shutil.copy(place, tmp_path / "whole")
    place.unlink()
    place.write_bytes(b"no database" * 1000)
    assert reader.look(first, 1.0) is first
    assert str(place) in reader.problem
    (tmp_path / "whole").replace(place)
    assert len(reader.look(first, 3.0).rounds) == 2
    assert reader.problem == ""


def _status(**fields) -> Received:
    message = collecting(*fleet(9), **fields)
    data = encode(Envelope(message.status, task="digits", run=message.run, round=message.round))
    return Received(run_status(FLEET), data, retained=False)


def _feed(reader: RegistryReader | None, found: list[Snapshot]) -> Feed:
    return Feed(reader, StatusFollower(FLEET, "here", 0.0), found.append, clock=lambda: 0.0)


def test_status_has_words_for_states_and_reasons():
    feed = _feed(None, [])
    feed.events.put(_status())
    live = feed.step(0.0).live
    assert live["link"] and live["status"]["devices"][0]["words"] == "asked"
    assert {one["why"] for one in live["status"]["devices"]} >= {"", "a reason"}


def test_status_alone_shows_its_last_rounds():
    feed = _feed(None, [])
    feed.events.put(_status())
    shown = feed.step(0.0)
    assert ([row["n"] for row in shown.rounds], shown.fleet) == ([1, 2], FLEET)


def test_history_of_a_device_has_no_rounds_of_a_run_of_another_fleet(tmp_path):
    with filled(tmp_path, rounds=2), served(tmp_path) as console:
        wait_until(lambda: console.streams.snapshot.rounds)
        assert len(console.ask(f"/api/devices/{FLEET}/pi-1").json["rounds"]) == 2
        assert console.ask("/api/devices/other/pi-1").json["rounds"] == []


def test_status_that_differs_in_time_alone_is_no_news():
    feed = _feed(None, [])
    feed.events.put(_status(elapsed_s=1.0))
    first = feed.step(0.0)
    feed.events.put(_status(elapsed_s=2.0))
    second = feed.step(0.0)
    assert second.live["status"]["elapsed_s"] == 2.0 and second.live_number == first.live_number


def test_lost_broker_is_named():
    feed = _feed(None, [])
    feed.events.put(_status())
    feed.events.put(Disconnected("gone"))
    live = feed.step(0.0).live
    assert not live["link"] and "broker: gone" in live["line"]


def test_silence_of_the_broker_is_explained_and_logged_once(caplog):
    now = [0.0]
    feed = Feed(None, StatusFollower(FLEET, "here", 0.0), lambda _: None, clock=lambda: now[0])
    feed.events.put(Received("another/topic", b"", retained=False))
    assert feed.step(0.0).live["line"] == ""
    for now[0] in (PATIENCE_S, PATIENCE_S + 1.0):
        assert "the broker does not let this user read" in feed.step(0.0).live["line"]
    assert [one.getMessage() for one in caplog.records] == [feed.step(0.0).live["line"]]


def test_thread_hands_over_snapshots_until_it_is_stopped(tmp_path):
    found: list[Snapshot] = []
    with filled(tmp_path, rounds=1):
        feed = _feed(RegistryReader(tmp_path, FLEET), found)
        feed.start()
        feed.events.put(_status())
        wait_until(lambda: found and found[-1].rounds)
        feed.stop()
    assert found[0].rounds == ()
