"""A password in a file: the permissions and content that the file needs; the password is never printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.load import load, public_values, to_toml
from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.mqtt.broker_settings import password_of, read_password
from tests.support.other_users import acting_as_nobody, open_directory

SECRET = "correct horse — battery"
NEEDED = {RunSettings: {}, AgentSettings: {"data": "shard:0/2"}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A password file with the permissions that its owner should set."""
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text(f"{SECRET}\n", "utf-8")
    return path


@pytest.mark.parametrize("settings", NEEDED)
def test_a_password_may_lie_in_a_file(settings, file):
    flags = {**NEEDED[settings], "username": "ada", "password_file": str(file)}
    found = load(settings, file=None, environ={}, flags=flags)
    assert password_of(found) == SECRET
    assert SECRET not in to_toml(found) + str(public_values(found)) + repr(found)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_end_of_the_line_is_not_part_of_it(file, end):
    """Blanks are part of it, since they may be intended."""
    file.write_bytes(b" two  words " + end.encode())
    assert read_password(file) == " two  words "


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_one_that_others_may_read_or_change_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(UsageError, match=f"chmod 600 {file}") as caught:
        read_password(file)
    assert SECRET not in str(caught.value)


def test_one_that_systemd_gives_its_service_is_taken(file, monkeypatch):
    """The access list of systemd appears as rights of a group; in any other directory these are refused."""
    file.chmod(0o440)
    with pytest.raises(UsageError):
        read_password(file)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(file.parent))
    assert read_password(file) == SECRET
    file.chmod(0o444)
    with pytest.raises(UsageError, match="open to other users"):
        read_password(file)


@pytest.mark.parametrize("data", [b"", b"\n", b"two\nlines\n", b"a\0b", b"\xff\xfe", b"x" * 4097])
def test_invalid_password_file_is_refused_without_quoting_it(file, data):
    file.write_bytes(data)
    with pytest.raises(UsageError, match="password_file") as caught:
        read_password(file)
    assert "lines" not in str(caught.value).replace(str(file), "") and "xxxx" not in str(caught.value)


def test_one_that_is_not_there_or_no_file_is_named(tmp_path):
    for path, words in ((tmp_path / "absent", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=words):
            read_password(path)


def test_password_file_needs_a_user_name_and_no_second_password(file):
    with pytest.raises(ConfigError) as caught:
        load(RunSettings, file=None, environ={"FEDPATCH_PASSWORD": SECRET}, flags={"password_file": str(file)})
    reported = sorted(caught.value.problems)
    assert reported == [
        "$FEDPATCH_PASSWORD: set without a user name; set username too",
        "--password-file: set beside a password; keep one of them",
    ]


def test_password_file_of_another_user_is_named_with_that_user_and_not_written_anew():
    with open_directory() as directory:
        path = directory / "password"
        path.touch(mode=0o600)
        with (
            acting_as_nobody(),
            pytest.raises(UsageError, match=r"let this user read it .*or run as its owner") as found,
        ):
            read_password(path)
    assert "install -m" not in str(found.value)
