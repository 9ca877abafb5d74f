"""Which run `fedpatch watch` finds by itself, and what it says where there is none."""

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
from tests.support.brokers import free_port
from tests.support.programs import Program


def begin(place: Path, fleet: str, created_at: float, ended: str | None = None, **more: str) -> str:
    """A run in a state directory; its id."""
    place.mkdir(exist_ok=True)
    settings = {"broker": f"mqtts://broker:{int(created_at)}", "fleet": fleet, "username": None, **more}
    with Registry(place / REGISTRY_FILE) as registry:
        run = registry.create_run(
            created_at=created_at, task="digits", strategy="fedavg", private="none", settings=settings, schema="00" * 32
        )
        if ended:
            registry.finish_run(run.id, stopped_because=ended, user_accuracy=None, model=None)
    return run.id


def test_a_run_that_goes_on_is_found_before_newer_ones_that_do_not(tmp_path):
    """In whichever directory it is; of a fleet, where one is named."""
    one, two, empty = tmp_path / "one", tmp_path / "two", tmp_path / "empty"
    kitchen = begin(one, "kitchen", 100.0)
    attic = begin(two, "attic", 200.0, "max_rounds")
    assert newest_run([two, empty, one], None).id == kitchen
    assert newest_run([two, empty, one], "attic").id == attic
    newer = begin(two, "kitchen", 300.0)
    assert newest_run([one, two], None).id == newer


def test_without_a_run_the_error_says_what_to_say(tmp_path):
    """Nothing is made where nothing is."""
    with pytest.raises(UsageError, match="no run of fleet 'attic' was begun here; say where it is, with --broker URL"):
        newest_run([tmp_path], "attic")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [["--once"], ["--json"], []])
def test_a_broker_that_is_not_there_is_said(how, monkeypatch, capsys):
    """As by the other commands, with exit code 3."""
    monkeypatch.setattr(
        fedpatch.coordinator.operations.watch, "CONNECT_TIMEOUT_S", 3.0
    )  # in which it is refused on a busy machine, too
    ended = Program(fedpatch.cli.main, monkeypatch, capsys)(
        "watch", "--broker", f"mqtt://127.0.0.1:{free_port()}", *how
    )
    assert ended.code == 3
    assert ended.out == ""
    assert "is a broker running there?" in ended.err


def test_a_fleet_that_cannot_be_is_a_mistake_in_one_sentence(monkeypatch, capsys):
    """Exit code 2."""
    ended = Program(fedpatch.cli.main, monkeypatch, capsys)("watch", "--broker", "mqtts://b", "--fleet", "No Name")
    assert ended.code == 2
    assert "--fleet" in ended.err and len(ended.err.splitlines()) == 1


def test_the_certificate_of_the_run_is_shown_unless_another_is_given(tmp_path, monkeypatch, capsys):
    """With its key, which may be in a file of its own; that of a watcher brings its own along."""
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


def test_the_run_s_password_file_is_read_unless_another_is_given(tmp_path, monkeypatch):
    """Another user has another password, and so has whoever gives one; that of a run is no use to them."""
    begin(tmp_path, "kitchen", 100.0, username="boss", password_file="/run/boss")
    nothing = dict.fromkeys(("broker", "fleet", "username", "insecure", "password_file", "ca_file", "cert_file"))
    assert broker_settings(nothing, tmp_path).password_file == Path("/run/boss")
    anna = broker_settings({**nothing, "username": "anna", "password_file": "/run/anna"}, tmp_path)
    assert (anna.username, anna.password_file) == ("anna", Path("/run/anna"))
    assert broker_settings({**nothing, "username": "anna"}, tmp_path).password_file is None
    monkeypatch.setenv("FEDPATCH_PASSWORD", "given")
    with_own = broker_settings(nothing, tmp_path)
    assert (with_own.password, with_own.password_file) == ("given", None)
