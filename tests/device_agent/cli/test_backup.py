"""`fedpatch-agent backup`, `restore` and `remove`: a new card is the same device and spends nothing twice."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.bus.home_assistant import BusTopics, discovery
from fedpatch.device_agent.cli import backup_file
from fedpatch.device_agent.cli.backup import REMAINS
from fedpatch.device_agent.cli.backup_file import MAGIC, SETTINGS, open_backup, seal_backup, settings_in
from fedpatch.device_agent.cli.numbered_backups import next_name, outdated
from fedpatch.device_agent.cli.removal import clear_bus
from fedpatch.device_agent.cli.restore import restore_backup
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.privacy_budget import (
    RESTORED_ACCOUNT,
    RESTORED_NAME,
    PrivacyBudget,
    restored_in_words,
)
from fedpatch.device_agent.policy.usage import Usage, UsageFile, read_today
from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.state.privacy_account import ACCOUNT_NAME, DevicePrivacyAccount
from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.device_agent.state.status_file import StatusFile, former_boots, lock_state_dir
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.errors import DataError, StateError, UsageError, problem_and_remedy
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.events import LinkEvent, Received
from fedpatch.shared.privacy.skellam import Release
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.features import COORDINATOR_FEATURES
from fedpatch.shared.wire.messages import DeviceState
from fedpatch.shared.wire.privacy_messages import GAUSSIAN, PrivacyTerms
from tests.device_agent.exported_models import RUN, describe, present, publish
from tests.device_agent.jobs import REQUEST
from tests.support.brokers import Mosquitto
from tests.support.examples import examples
from tests.support.failing_reads import FailingReads
from tests.support.other_users import NOBODY, open_directory

SALT, NONCE = bytes(16), bytes(12)
DAY = date(2026, 5, 4)
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
NOISY = replace(REQUEST, privacy=PrivacyTerms(GAUSSIAN, 2.0, 1.0, 1e-5, 10), features=COORDINATOR_FEATURES)


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """The state directory of a device that has worked."""
    state = tmp_path / "old"
    for name in ("patches/t-1.patch", "models/t/000001-r-1/model.onnx", "identity/client.pem"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_bytes(name.encode())
    (state / "models/t/current").symlink_to("000001-r-1")
    (state / "masking.bin").write_bytes(b"secret")
    StatusFile(state, {"boots": ["old-card"]}).write({"state": "idle"})
    UsageFile(state, lambda: NOON).note(Usage(rounds=1))
    DevicePrivacyAccount(state).count("home", "r", "t", "ab", Release(2.0, 0))
    return state


def restored(card: Path, target: Path) -> bytes:
    """Restore a backup of the card, and return the settings."""
    data = seal_backup(card, b"data = 'x'\n", "secret", DAY, salt=SALT, nonce=NONCE)
    return restore_backup(open_backup(data, "secret", "file"), target, DAY)


def test_new_card_has_settings_patch_model_and_identity_and_nothing_of_rounds_that_are_over(card, tmp_path):
    new = tmp_path / "new"
    assert restored(card, new) == b"data = 'x'\n"
    for name in ("patches/t-1.patch", "models/t/current/model.onnx", "identity/client.pem"):
        assert (new / name).read_bytes() == (card / name).read_bytes()
    assert (new / "identity/client.pem").stat().st_mode & 0o077 == 0
    assert not any((new / name).exists() for name in ("status.json", "masking.bin"))


def test_backup_beside_an_agent_that_publishes_a_model_meanwhile_has_one_whole_model(card, tmp_path, monkeypatch):
    """The publication falls between the list of files and their contents, where a staged model gets its name."""
    models = ModelStore(card / "models", 1)
    publish(models, 1)
    models.stage(b"second", describe(2, b"second"))

    def add(tar: tarfile.TarFile, name: str, *arguments: Any, **options: Any) -> None:
        if name.startswith("models/toy/"):
            models.publish("toy", RUN, 2)
        add_file(tar, name, *arguments, **options)

    add_file = backup_file._add
    monkeypatch.setattr(backup_file, "_add", add)
    restored(card, tmp_path / "new")
    again = ModelStore(tmp_path / "new" / "models", 1)
    assert (present(tmp_path / "new" / "models"), list(again.problems())) == (2, [])
    assert [one.name for one in (tmp_path / "new/models/toy").iterdir() if one.name.startswith(".")] == []


def test_backup_beside_an_agent_that_writes_in_each_attempt_is_refused_and_says_so(card, monkeypatch):
    def add(*arguments: Any, **options: Any) -> None:
        write_atomic(card / "patches/t-1.patch", bytes(next(sizes)))
        add_file(*arguments, **options)

    sizes, add_file = count(1), backup_file._add
    monkeypatch.setattr(backup_file, "_add", add)
    monkeypatch.setattr(backup_file, "_PAUSES_S", (0.0, 0.0))
    with pytest.raises(StateError, match="during each of 3 attempts"):
        seal_backup(card, b"", "secret", DAY, salt=SALT, nonce=NONCE)


def test_backup_of_the_morning_restored_in_the_evening_has_spent_the_allowance_of_the_day(card, tmp_path):
    restored(card, tmp_path / "new")
    spent = read_today(tmp_path / "new", lambda: NOON)
    assert (spent.rounds >= 10**6, spent.traffic_bytes >= 2**40, spent.training_s >= 86_400.0) == (True, True, True)
    assert read_today(tmp_path / "new", lambda: NOON.replace(day=5)) == Usage()


def test_restored_account_declines_until_the_owner_has_decided_about_rounds_since_the_backup(card, tmp_path):
    new = tmp_path / "new"
    restored(card, new)
    budget = PrivacyBudget(new, fleet="home", max_epsilon=1e5)
    assert budget.refusal(NOISY) == RESTORED_ACCOUNT
    assert "is from a backup" in budget.declines
    (new / RESTORED_NAME).unlink()
    assert budget.refusal(NOISY) is None
    assert budget.status()["rounds"] == 1


def test_restored_card_masks_no_second_update_from_a_base_and_takes_no_older_list_than_the_backup(card, tmp_path):
    OfferedBases(card).add("ec" * 32)
    RevocationFile(card).save(b"list")
    restored(card, tmp_path / "new")
    assert sorted(OfferedBases(tmp_path / "new").load() or ()) == ["ec" * 32]
    assert RevocationFile(tmp_path / "new").load() == b"list"


def test_backup_of_a_restored_card_keeps_its_account_closed(card, tmp_path):
    restored(card, tmp_path / "new")
    restored(tmp_path / "new", tmp_path / "newer")
    assert (tmp_path / "newer" / RESTORED_NAME).exists()


def test_old_card_that_still_runs_is_a_twin_of_the_new_one(card, tmp_path):
    """Its start is not among those that the new card takes for its own."""
    restored(card, tmp_path / "new")
    detector = DuplicateIdDetector("new-card", 60.0, former_boots=former_boots(tmp_path / "new"))
    detector.connected()
    detector.observe(DeviceState(online=True, boot="new-card"), 0.0)
    detector.connected()
    assert detector.observe(DeviceState(online=True, boot="old-card"), 1.0)


def test_backup_is_opened_by_its_passphrase_only_and_shows_no_content(card):
    data = seal_backup(card, b"data", "secret", DAY, salt=SALT, nonce=NONCE)
    assert b"patches" not in data and b"client.pem" not in data
    for wrong, passphrase in ((data, "other"), (data[:-1] + bytes([data[-1] ^ 1]), "secret")):
        with pytest.raises(DataError, match="the passphrase is another one, or the file is damaged"):
            open_backup(wrong, passphrase, "file")
    with pytest.raises(DataError, match="is no backup"):
        open_backup(b"hello", "secret", "file")


def test_restored_directories_are_as_open_as_those_that_an_agent_makes(card, tmp_path):
    """The group passes through to the personal models, whatever the umask."""
    before = os.umask(0o022)
    try:
        restored(card, tmp_path / "new")
    finally:
        os.umask(before)
    modes = {one: (tmp_path / "new" / one).stat().st_mode & 0o777 for one in ("", "models", "models/t", "patches")}
    assert modes == {"": 0o710, "models": 0o750, "models/t": 0o750, "patches": 0o700}


@pytest.mark.parametrize(("settings", "why"), [(None, "no such file"), ("nice = 1\n", "names no state directory")])
def test_restore_without_a_state_directory_asks_for_it_and_writes_nothing(
    agent, card, tmp_path, monkeypatch, settings, why
):
    """The service begins in its own directory: a state that lies where the owner typed would spend everything twice."""
    secret, file, here = tmp_path / "passphrase", tmp_path / "x.backup", tmp_path / "here"
    secret.write_text("secret\n")
    file.write_bytes(seal_backup(card, b"", "secret", DAY, salt=SALT, nonce=NONCE))
    here.mkdir()
    monkeypatch.chdir(here)
    if settings is not None:
        (tmp_path / SETTINGS).write_text(settings)
    done = agent("restore", file, "--passphrase-file", secret, "--config", tmp_path / SETTINGS)
    assert done.code == 2 and done.err.endswith(f"{why}; name that of the agent with --state-dir\n")
    assert list(here.iterdir()) == []


def test_restore_into_a_state_changes_nothing(card):
    archive = open_backup(seal_backup(card, b"", "secret", DAY, salt=SALT, nonce=NONCE), "secret", "file")
    before = {path: path.read_bytes() for path in card.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="has a state already"):
        restore_backup(archive, card, DAY)
    assert {path: path.read_bytes() for path in card.rglob("*") if path.is_file()} == before


def test_restore_with_a_clock_before_the_backup_is_refused_and_writes_nothing(card, tmp_path):
    """The allowance of the real day would be there again once the clock is set."""
    archive = open_backup(seal_backup(card, b"", "secret", DAY, salt=SALT, nonce=NONCE), "secret", "file")
    with pytest.raises(UsageError, match=r"the clock shows 2026-05-03, and the backup is of 2026-05-04; set the clock"):
        restore_backup(archive, tmp_path / "new", DAY - timedelta(days=1))
    assert not (tmp_path / "new").exists()


@examples(50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 4))
def test_numbered_backups_keep_the_newest_though_the_clock_jumps(days, keep):
    """Days of a wrong clock; a file of another device or another name stays."""
    foreign = ["pi-000009-2026-01-01.backup", "pi-1-2026.backup", "pi-1-000001-2026-01-01.backup.tmp", "photo.jpg"]
    names, made = list(foreign), []
    for day in days:
        made.append(next_name(names, "pi-1", date(2026, 1, 1) + timedelta(days=day)))
        names.append(made[-1])
        names = [one for one in names if one not in outdated(names, "pi-1", keep)]
    assert names == foreign + made[-keep:]


def test_backups_of_a_directory_are_numbered_and_the_oldest_ones_go(agent, card, tmp_path):
    config, secret, folder = tmp_path / "agent.toml", tmp_path / "passphrase", tmp_path / "stick"
    config.write_text(f'state_dir = "{card}"\n')
    secret.write_text("secret\n")
    arguments = ("backup", folder, "--keep", 2, "--passphrase-file", secret, "--config", config)
    missing = agent(*arguments)
    assert missing.code == 2 and "mount or make the directory" in missing.err
    folder.mkdir()
    (folder / "photo.jpg").touch()
    for _ in range(3):
        assert agent(*arguments).code == 0
    found = sorted(one.name for one in folder.glob("*.backup"))
    assert [one.split("-")[-4] for one in found] == ["000002", "000003"] and (folder / "photo.jpg").exists()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "patches/../../x", "else"])
def test_archive_with_a_foreign_name_is_refused(tmp_path, name):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(DataError, match="which no backup has"):
        restore_backup(archive.getvalue(), tmp_path / "new", DAY)


def test_owner_makes_a_backup_and_restores_it_by_command(agent, card, tmp_path):
    config, secret, file = tmp_path / "agent.toml", tmp_path / "passphrase", tmp_path / "x.backup"
    config.write_text(f'state_dir = "{card}"\n')
    secret.write_text("secret\n")
    assert agent("backup", file, "--passphrase-file", secret, "--config", config).code == 0
    assert file.read_bytes().startswith(MAGIC) and file.stat().st_mode & 0o077 == 0
    target = ("--config", tmp_path / "new" / SETTINGS, "--state-dir", tmp_path / "new" / "state")
    (tmp_path / "new").mkdir()
    done = agent("restore", file, "--passphrase-file", secret, *target)
    assert (done.code, "the allowance of today counts as spent" in done.out) == (0, True), done.err
    assert (tmp_path / "new" / SETTINGS).read_text() == config.read_text()
    assert f"names the state directory {card}: write state_dir = '{tmp_path / 'new' / 'state'}'" in done.out.replace(
        '"', "'"
    )


def test_backup_has_the_settings_of_the_agent_in_the_state_directory(agent, card, tmp_path, monkeypatch):
    """Not those of an agent.toml that lies where the owner types."""
    secret, file, config = tmp_path / "passphrase", tmp_path / "x.backup", tmp_path / "etc.toml"
    secret.write_text("secret\n")
    config.write_text('device_id = "pi-3"\n')
    (tmp_path / SETTINGS).write_text('device_id = "pi-4"\n')
    StatusFile(card, {}).write({"settings": {"file": str(config)}})
    monkeypatch.chdir(tmp_path)
    assert agent("backup", file, "--passphrase-file", secret, "--state-dir", card).code == 0
    assert settings_in(open_backup(file.read_bytes(), "secret", "file")) == config.read_bytes()


def test_backup_without_settings_says_how_to_name_them(agent, card, tmp_path):
    secret = tmp_path / "passphrase"
    secret.write_text("secret\n")
    absent = ("--state-dir", card, "--config", tmp_path / "absent.toml")
    done = agent("backup", tmp_path / "x.backup", "--passphrase-file", secret, *absent)
    assert done.code == 2 and "name the settings file of the agent with --config" in done.err


def test_identity_of_the_enrolled_card_stays_and_that_of_the_backup_is_left_out(card, tmp_path):
    """The certificate in the backup may have been revoked when the card was enrolled."""
    identity = tmp_path / "new" / "identity"
    identity.mkdir(parents=True)
    (identity / "client.pem").write_bytes(b"of the new card")
    restored(card, tmp_path / "new")
    assert (identity / "client.pem").read_bytes() == b"of the new card"
    assert (tmp_path / "new" / "patches/t-1.patch").exists()


def test_backup_of_another_device_is_refused_by_name_before_anything_is_written(agent, card, tmp_path):
    secret, file, new, config = (tmp_path / name for name in ("passphrase", "x.backup", "new", "agent.toml"))
    secret.write_text("secret\n")
    config.write_text('device_id = "pi-4"\n')
    file.write_bytes(seal_backup(card, b'device_id = "pi-3"\n', "secret", DAY, salt=SALT, nonce=NONCE))
    done = agent("restore", file, "--passphrase-file", secret, "--state-dir", new, "--config", config)
    assert (done.code, "is a backup of 'pi-3'" in done.err, new.exists()) == (2, True, False), done.err


def test_restore_is_refused_while_the_agent_runs(agent, card, tmp_path):
    secret, file, new = tmp_path / "passphrase", tmp_path / "x.backup", tmp_path / "new"
    secret.write_text("secret\n")
    file.write_bytes(seal_backup(card, b"", "secret", DAY, salt=SALT, nonce=NONCE))
    with lock_state_dir(new):
        done = agent("restore", file, "--passphrase-file", secret, "--state-dir", new)
    assert (done.code, "another agent is running" in done.err) == (2, True), done.err
    assert not (new / "patches").exists()


def test_root_restores_files_and_settings_as_those_of_the_directorys_owner(agent, card):
    """A copy that root owned made the agent decline until its owner was corrected by hand."""
    with open_directory() as folder:
        secret, file, new = folder / "passphrase", folder / "x.backup", folder / "state"
        secret.write_text("secret\n")
        secret.chmod(0o600)
        file.write_bytes(seal_backup(card, b"", "secret", DAY, salt=SALT, nonce=NONCE))
        new.mkdir(mode=0o700)
        os.chown(new, NOBODY, NOBODY)
        done = agent(
            "restore", file, "--passphrase-file", secret, "--state-dir", new, "--config", folder / "agent.toml"
        )
        assert done.code == 0, done.err
        assert {path.lstat().st_uid for path in new.rglob("*")} == {NOBODY}
        assert (folder / "agent.toml").stat().st_uid == NOBODY


def test_restore_writes_no_settings_at_a_place_that_the_state_directory_names(agent, card, tmp_path):
    """The agent's user could move this place after the look at the settings: root would make a file of that user there."""
    secret, file, new, goal = (tmp_path / name for name in ("passphrase", "x.backup", "new", "goal"))
    file.write_bytes(seal_backup(card, b"", "secret", DAY, salt=SALT, nonce=NONCE))
    (new / "etc").mkdir(parents=True)
    (new / "etc" / SETTINGS).write_text("")
    goal.mkdir()
    StatusFile(new, {}).write({"settings": {"file": str(new / "etc" / SETTINGS)}})
    os.mkfifo(secret)

    def move() -> None:
        with secret.open("w") as pipe:  # which waits until the command reads the passphrase
            (new / "etc").rename(new / "away")
            (new / "etc").symlink_to(goal)
            pipe.write("secret\n")

    thread = threading.Thread(target=move)
    thread.start()
    done = agent("restore", file, "--passphrase-file", secret, "--state-dir", new)
    thread.join()
    assert (done.code, list(goal.iterdir())) == (2, [])
    assert "name the settings file of the agent with --config" in done.err


def test_remove_with_settings_that_name_no_state_directory_asks_for_it(agent, tmp_path, monkeypatch):
    """Else it would not see a running agent, and cut it off from the broker."""
    (tmp_path / SETTINGS).write_text('data = "x"\nbroker = "mqtt://127.0.0.1:1"\n')
    monkeypatch.chdir(tmp_path)
    done = agent("remove", "--config", SETTINGS)
    assert done.code == 2 and done.err.endswith("say where its state is with --state-dir\n")


def test_remove_is_refused_while_the_agent_runs(agent, tmp_path):
    with lock_state_dir(tmp_path):
        done = agent("remove", "--data", "x", "--state-dir", tmp_path, "--broker", "mqtt://127.0.0.1:1")
    assert done.code == 2 and "the agent is running" in done.err


def retained_at(url: str, names: Sequence[str]) -> set[str]:
    """Topics that have a retained message at a broker; a message of our own comes after all of them."""
    events: SimpleQueue[LinkEvent] = SimpleQueue()
    link = MqttLink(url, client_id="reader", events=events.put, clean_start=True)
    link.subscribe(*names, "end")
    link.start()
    link.wait_connected(30.0)
    link.publish("end", b"x")
    found: set[str] = set()
    try:
        while True:
            event = events.get(timeout=30.0)
            if isinstance(event, Received):
                if event.topic == "end":
                    return found
                found.add(event.topic)
    except Empty:
        raise AssertionError("the broker is silent") from None
    finally:
        link.stop()


@pytest.mark.medium
@pytest.mark.broker
def test_remove_is_refused_while_the_bus_is_online_with_a_remedy_also_for_a_broker_that_missed_its_end(agent, tmp_path):
    with Mosquitto() as broker:
        link = MqttLink(broker.url, client_id="bus", events=lambda _: None, clean_start=True)
        link.start()
        link.wait_connected(30.0)
        link.publish(BusTopics("fedpatch-bus", "lab", "pi").availability, b"online", retain=True)
        link.stop(5.0)
        (tmp_path / "bus.toml").write_text(f'broker = "{broker.url}"\n')
        names = ("--fleet", "lab", "--device-id", "pi", "--broker", broker.url, "--state-dir", tmp_path / "state")
        done = agent("remove", "--data", "x", *names, "--bus-config", tmp_path / "bus.toml")
    assert done.code == 2 and "systemctl disable --now fedpatch-bus" in done.err
    assert "systemctl start fedpatch-bus" in done.err


@pytest.mark.medium
@pytest.mark.broker
def test_remove_clears_what_the_device_retained_and_lists_what_remains(agent, tmp_path):
    bus, state = BusTopics("fedpatch-bus", "lab", "pi"), topics.device_state("lab", "pi")
    retained = [state, bus.state, bus.availability, *discovery(bus, "homeassistant", "device", switch=True)]
    with Mosquitto() as broker:
        link = MqttLink(broker.url, client_id="pi", events=lambda _: None, clean_start=True)
        link.start()
        link.wait_connected(30.0)
        for topic in retained:
            link.publish(topic, b"x", retain=True)
        link.stop(5.0)
        assert retained_at(broker.url, retained) == set(retained)
        (tmp_path / "bus.toml").write_text(f'broker = "{broker.url}"\n')
        own = {"fleet": "lab", "device_id": "pi", "broker": broker.url, "data": "x"}
        (tmp_path / "house.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in own.items()))
        (tmp_path / "state").mkdir()
        StatusFile(tmp_path / "state", {}).write({"settings": {"file": str(tmp_path / "house.toml")}})
        done = agent("remove", "--state-dir", tmp_path / "state", "--bus-config", tmp_path / "bus.toml")
        assert retained_at(broker.url, retained) == set()
    assert done.code == 0, done.err
    assert all(line.partition("{")[0] in done.out for line, _ in REMAINS)
    assert f"settings {tmp_path / 'house.toml'} and passwords in {tmp_path / 'house.env'}" in done.out


def test_backup_replaces_a_backup_and_no_other_file(agent, card, tmp_path):
    config, phrase, target = tmp_path / "agent.toml", tmp_path / "phrase", tmp_path / "pi.backup"
    config.write_text(f'data = "x"\nstate_dir = "{card}"\n')
    phrase.write_text("secret\n")
    for _ in range(2):
        assert agent("backup", target, "--passphrase-file", phrase, "--config", config).code == 0
    written = config.read_bytes()
    done = agent("backup", config, "--passphrase-file", phrase, "--config", config)
    assert done.code == 2 and f"{config}: is no backup of a device" in done.err
    assert config.read_bytes() == written


def test_absent_settings_of_the_bus_are_named_and_no_option_of_the_agent(tmp_path):
    with pytest.raises(UsageError, match=r"bus\.toml: no such file; correct this path"):
        clear_bus(tmp_path / "bus.toml", AgentSettings(data="x"), "pi", 1.0, 1.0)


def test_restored_account_is_named_with_its_file_while_no_agent_runs(agent, card, tmp_path):
    new, config = tmp_path / "new", tmp_path / "agent.toml"
    new.mkdir(mode=0o700)
    with lock_state_dir(new):
        restored(card, new)
    config.write_text(f'data = "x"\nstate_dir = "{new}"\nmax_epsilon = 5.0\nbroker = "mqtt://127.0.0.1:1"\n')
    for command in ("conditions", "status", "doctor"):
        done = agent(command, "--config", config)
        problem, remedy = problem_and_remedy(restored_in_words(new))
        assert problem in done.out and remedy in done.out, done.err


@pytest.mark.parametrize("state", ["ok", "restored", "damaged", "unreadable"])
def test_status_names_the_state_of_the_account_in_a_word_and_its_file_in_words(agent, tmp_path, monkeypatch, state):
    lock_state_dir(tmp_path).release()
    if state == "restored":
        (tmp_path / RESTORED_NAME).touch()
    elif state == "damaged":
        (tmp_path / ACCOUNT_NAME).write_bytes(b"fedpatch privacy ledger 1\n{")
    elif state == "unreadable":
        (tmp_path / ACCOUNT_NAME).touch()
        FailingReads(monkeypatch).fail(tmp_path / ACCOUNT_NAME)
    assert json.loads(agent("status", "--state-dir", tmp_path, "--json").out)["privacy_account"] == state
    words = agent("status", "--state-dir", tmp_path).out
    assert (f"privacy: {tmp_path / ACCOUNT_NAME}: " in words) is (state != "ok")
