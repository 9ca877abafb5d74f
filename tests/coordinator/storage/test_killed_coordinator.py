"""A run whose coordinator was killed is shown as interrupted, though the registry says "running"."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.api.client import Client
from fedpatch.coordinator.cli.watch import broker_settings
from fedpatch.coordinator.console.feed import RegistryReader
from fedpatch.coordinator.console.snapshot import Snapshot
from fedpatch.coordinator.operations.watch import newest_run
from fedpatch.coordinator.report.load import read_runs
from fedpatch.coordinator.storage.database.opening import URL_FILE
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file
from fedpatch.shared.app.locks import FileLock
from tests.coordinator.registry_builders import new_run
from tests.support.identities import Certified


@pytest.fixture
def place(tmp_path):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        new_run(registry, settings={"fleet": "lab"})
        fleet = "lab"
    return tmp_path, fleet_lock_file(tmp_path, fleet), fleet


def said_by(client: Client) -> set[str]:
    place = client.state_dir()
    (reported,) = read_runs(place, ["last"])
    found = {*(run.status for run in client.runs()), client.run_info().status, client.show().stopped_because}
    return found | {reported.info.status, newest_run([place], None).status}


def test_run_is_running_while_its_coordinator_holds_the_lock_and_interrupted_after_a_kill(place):
    folder, lock, _ = place
    client = Client(folder)
    with FileLock(lock, "in use"):
        assert said_by(client) == {"running"}
    assert said_by(client) == {"interrupted"}


def test_console_notices_the_kill_without_a_change_of_the_registry(place):
    folder, lock, _ = place
    reader, snapshot = RegistryReader(folder, None), Snapshot(live={})
    with FileLock(lock, "in use"):
        for now in (0.0, 1.0):
            snapshot = reader.look(snapshot, now)
        assert [row["status"] for row in snapshot.runs] == ["running"]
    for now in (2.0, 3.0):
        snapshot = reader.look(snapshot, now)
    assert [row["status"] for row in snapshot.runs] == ["interrupted"]
    reader.close()


def test_run_in_a_shared_database_stays_as_the_registry_says(place):
    from fedpatch.coordinator.storage.state_dirs import as_it_is

    folder, lock, _ = place
    lock.touch()
    with Registry(folder / REGISTRY_FILE, readonly=True) as registry:
        run = registry.run("last")
    assert as_it_is(run, folder).status == "interrupted"
    (folder / URL_FILE).write_text("postgresql://elsewhere/db\n")
    assert as_it_is(run, folder).status == "running"


def test_fleet_of_the_newest_run_here_is_watched_at_a_broker_that_is_named(place):
    folder, _, fleet = place
    names = ("broker", "fleet", "username", "password_file", "ca_file", "cert_file", "key_file", "insecure")
    given = dict.fromkeys(names) | {"broker": "mqtt://127.0.0.1:1"}
    assert broker_settings(given, folder).fleet == fleet
    assert broker_settings(given | {"fleet": "attic"}, folder).fleet == "attic"


def test_fleet_of_a_watchers_certificate_is_watched_where_no_fleet_is_given(place, tmp_path_factory):
    folder, _, _ = place
    certificate = Certified(tmp_path_factory.mktemp("ca"), "kitchen").make(watchers=["anna"]).files("anna").cert_file
    names = ("fleet", "username", "password_file", "ca_file", "key_file", "insecure")
    given = dict.fromkeys(names) | {"broker": "mqtts://127.0.0.1:1", "cert_file": certificate}
    for state_dir in (folder, None):
        assert broker_settings(given, state_dir).fleet == "kitchen"
    assert broker_settings(given | {"fleet": "attic"}, folder).fleet == "attic"
