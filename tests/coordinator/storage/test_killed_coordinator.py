"""A run whose coordinator was killed is shown as interrupted, though the registry says "running".

PostgreSQL frees the lock of a coordinator once it has noticed the end of the connection.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpatch.coordinator.api.client import Client
from fedpatch.coordinator.cli.watch import broker_settings
from fedpatch.coordinator.console.feed import RegistryReader
from fedpatch.coordinator.console.snapshot import Snapshot
from fedpatch.coordinator.operations.watch import newest_run
from fedpatch.coordinator.report.load import read_runs
from fedpatch.coordinator.storage.database.opening import URL_FILE
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file
from fedpatch.shared.app.locks import FileLock
from tests.coordinator.console.consoles import wait_until
from tests.coordinator.registry_builders import new_run
from tests.support.identities import Certified

FLEET = "lab"


class Place:
    """A state directory with a run of the fleet "lab"."""

    def __init__(self, folder: Path, registry: Path) -> None:
        self.folder, self._registry = folder, registry
        with Registry(registry) as opened:
            new_run(opened, settings={"fleet": FLEET})

    @contextmanager
    def coordinator(self) -> Iterator[None]:
        """Hold the locks that a coordinator of the fleet holds while it lives."""
        with Registry(self._registry) as registry, FileLock(fleet_lock_file(self.folder, FLEET), "in use"):
            registry.lead(FLEET)
            yield


@pytest.fixture
def place(tmp_path, engine):
    return Place(tmp_path, engine(tmp_path))


def said_by(client: Client) -> set[str]:
    place = client.state_dir()
    (reported,) = read_runs(place, ["last"])
    found = {*(run.status for run in client.runs()), client.run_info().status, client.show().stopped_because}
    return found | {reported.info.status, newest_run([place], None).status}


def test_run_is_running_while_its_coordinator_has_the_lock_and_interrupted_after_a_kill(place):
    client = Client(place.folder)
    with place.coordinator():
        assert said_by(client) == {"running"}
    wait_until(lambda: said_by(client) == {"interrupted"})


def test_console_notices_the_kill_without_a_change_of_the_registry(place):
    reader, snapshot = RegistryReader(place.folder, None), Snapshot(live={})
    with place.coordinator():
        for now in (0.0, 1.0):
            snapshot = reader.look(snapshot, now)
        assert [row["status"] for row in snapshot.runs] == ["running"]
    looks = (reader.look(snapshot, now) for now in itertools.count(2.0))
    wait_until(lambda: [row["status"] for row in next(looks).runs] == ["interrupted"])
    reader.close()


@pytest.mark.medium
def test_run_in_a_shared_database_is_running_in_the_eyes_of_a_machine_without_the_coordinator(tmp_path, postgres):
    here, elsewhere = Place(tmp_path / "here", postgres.state(tmp_path / "here")), tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(here.folder / URL_FILE, elsewhere / URL_FILE)
    with here.coordinator():
        assert said_by(Client(elsewhere)) == {"running"}
    wait_until(lambda: said_by(Client(elsewhere)) == {"interrupted"})


def test_fleet_of_the_newest_run_here_is_watched_at_a_broker_that_is_named(place):
    folder, fleet = place.folder, FLEET
    names = ("broker", "fleet", "username", "password_file", "ca_file", "cert_file", "key_file", "insecure")
    given = dict.fromkeys(names) | {"broker": "mqtt://127.0.0.1:1"}
    assert broker_settings(given, folder).fleet == fleet
    assert broker_settings(given | {"fleet": "attic"}, folder).fleet == "attic"


def test_fleet_of_a_watchers_certificate_is_watched_where_no_fleet_is_given(place, tmp_path_factory):
    folder = place.folder
    certificate = Certified(tmp_path_factory.mktemp("ca"), "kitchen").make(watchers=["anna"]).files("anna").cert_file
    names = ("fleet", "username", "password_file", "ca_file", "key_file", "insecure")
    given = dict.fromkeys(names) | {"broker": "mqtts://127.0.0.1:1", "cert_file": certificate}
    for state_dir in (folder, None):
        assert broker_settings(given, state_dir).fleet == "kitchen"
    assert broker_settings(given | {"fleet": "attic"}, folder).fleet == "attic"
