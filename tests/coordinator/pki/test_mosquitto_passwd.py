"""Passwords for brokers that take no client certificates."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from fedpatch.coordinator.pki.issued_certificates import DEVICE, PASSWORD, Entry, Index
from fedpatch.coordinator.pki.mosquitto_passwd import keep_passwords, new_password, password_file, password_line
from fedpatch.shared.mqtt.client import Connected, Disconnected
from tests.support.brokers import Mosquitto, client

VECTOR = (
    "pi-1:$7$101$x3mjOb1OF1yI5mCf$VkiZg7adxJ78lu/4db3I0nmzunuKp"
    "eFnQI2kwrtA4rIN0AZsIaAFR3wzHShkCp0tl/EY154JvWBBPc38E1bwSg=="
)


def index_of(*devices: str, revoked: str = "") -> Index:
    """Return a record of devices with passwords."""
    entries = [
        Entry(serial=f"{number:x}", part=DEVICE, name=name, kind=PASSWORD, revoked_at=int(name == revoked))
        for number, name in enumerate(devices, 1)
    ]
    return Index(fleet="kitchen", entries=tuple(entries))


def test_password_line_equals_that_of_mosquitto():
    """The expected line was made by mosquitto_passwd 2.0.11 for the password `secret`."""
    made = VECTOR.partition("$101$")[2].partition("$")[0]
    assert password_line("pi-1", "secret", base64.b64decode(made)) == VECTOR


def test_password_has_256_random_bits_and_no_special_characters():
    found = {new_password() for _ in range(100)}
    assert len(found) == 100
    assert all(len(one) == 43 and one.replace("-", "a").replace("_", "a").isalnum() for one in found)


def test_password_file_has_one_line_per_valid_user(tmp_path: Path):
    assert keep_passwords(tmp_path, index_of()) is None
    keep_passwords(tmp_path, index_of("b"), "b:1")
    keep_passwords(tmp_path, index_of("a", "b"), "a:1")
    path = keep_passwords(tmp_path, index_of("a", "b"), "b:2")
    assert path == password_file(tmp_path) and path.read_text() == "a:1\nb:2\n"
    assert path.stat().st_mode & 0o777 == 0o600
    keep_passwords(tmp_path, index_of("a", "b", revoked="a"))
    assert path.read_text() == "b:2\n"


@pytest.mark.broker
def test_mosquitto_accepts_the_password_and_no_other(tmp_path: Path):
    words = new_password()
    path = keep_passwords(tmp_path, index_of("pi-1"), password_line("pi-1", words))
    with Mosquitto(f"password_file {path}\nallow_anonymous false") as broker:
        with client(broker.url, "one", username="pi-1", password=words) as one:
            one.wait(Connected)
        with client(broker.url, "two", username="pi-1", password=words[:-1]) as two:
            assert "refused user 'pi-1'" in two.wait(Disconnected).reason
