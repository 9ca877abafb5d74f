"""`fedpatch watch`: its default run and credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedpatch.cli
import fedpatch.coordinator.operations.watch
from fedpatch.coordinator.cli.watch import broker_settings
from fedpatch.coordinator.operations.watch import newest_run
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.tls_context import TlsFiles
from tests.coordinator.registry_builders import new_run
from tests.support.brokers import free_port
from tests.support.programs import Program


def begin(place: Path, fleet: str, created_at: float, ended: str | None = None, **more: str) -> str:
    """Create a run in a state directory, and return its id."""
    place.mkdir(exist_ok=True)
    settings = {"broker": f"mqtts://broker:{int(created_at)}", "fleet": fleet, "username": None, **more}
    with Registry(place / REGISTRY_FILE) as registry:
        run = new_run(registry, created_at, settings=settings)
        if ended:
            registry.finish_run(run.id, stopped_because=ended, user_accuracy=None, model=None)
    return run.id


def test_newest_run_prefers_a_running_one(tmp_path):
    one, two, empty = tmp_path / "one", tmp_path / "two", tmp_path / "empty"
    kitchen = begin(one, "kitchen", 100.0)
    attic = begin(two, "attic", 200.0, "max_rounds")
    assert newest_run([two, empty, one], None).id == kitchen
    assert newest_run([two, empty, one], "attic").id == attic
    newer = begin(two, "kitchen", 300.0)
    assert newest_run([one, two], None).id == newer


def test_newest_run_without_runs_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no run of fleet 'attic' was begun here; say where it is, with --broker URL"):
        newest_run([tmp_path], "attic")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
@pytest.mark.parametrize("how", [["--once"], ["--json"], []])
def test_watch_without_its_broker_exits_with_3(how, monkeypatch, capsys):
    monkeypatch.setattr(
        fedpatch.coordinator.operations.watch, "CONNECT_TIMEOUT_S", 3.0
    )  # time for the refused connection, also on a busy machine
    ended = Program(fedpatch.cli.main, monkeypatch, capsys)(
        "watch", "--broker", f"mqtt://127.0.0.1:{free_port()}", *how
    )
    assert ended.code == 3
    assert ended.out == ""
    assert "is a broker running there?" in ended.err


def test_watch_of_a_malformed_fleet_name_is_a_usage_error(monkeypatch, capsys):
    ended = Program(fedpatch.cli.main, monkeypatch, capsys)("watch", "--broker", "mqtts://b", "--fleet", "No Name")
    assert ended.code == 2
    assert "--fleet" in ended.err and len(ended.err.splitlines()) == 1


def test_watch_uses_the_certificate_of_the_run_unless_another_is_given(tmp_path, monkeypatch, capsys):
    files = {"ca_file": "/ca.crt", "cert_file": "/own.crt", "key_file": "/own.key"}
    begin(tmp_path, "kitchen", 100.0, broker="mqtts://broker", **files)
    watched: list[TlsFiles] = []
    monkeypatch.setattr(
        fedpatch.coordinator.operations.watch, "watch", lambda settings, **_: watched.append(settings.tls_files)
    )
    watch = Program(fedpatch.cli.main, monkeypatch, capsys)
    watch("watch", "--state-dir", tmp_path)
    watch("watch", "--state-dir", tmp_path, "--cert-file", "/anna.pem")
    assert watched == [
        TlsFiles(Path("/ca.crt"), Path("/own.crt"), Path("/own.key")),
        TlsFiles(Path("/ca.crt"), Path("/anna.pem"), None),
    ]


def test_watch_uses_the_password_file_of_the_run_unless_user_or_password_is_given(tmp_path):
    """The run's password file is not for another user."""
    begin(tmp_path, "kitchen", 100.0, username="boss", password_file="/run/boss")
    nothing = dict.fromkeys(("broker", "fleet", "username", "insecure", "password_file", "ca_file", "cert_file"))
    assert broker_settings(nothing, tmp_path).password_file == Path("/run/boss")
    anna = broker_settings({**nothing, "username": "anna", "password_file": "/run/anna"}, tmp_path)
    assert (anna.username, anna.password_file) == ("anna", Path("/run/anna"))
    assert broker_settings({**nothing, "username": "anna"}, tmp_path).password_file is None
    with_own = broker_settings(nothing, tmp_path, "given")
    assert (with_own.password, with_own.password_file) == ("given", None)
