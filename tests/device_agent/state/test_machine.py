"""A state directory that came to a second device with a copied card."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fedpatch.device_agent.cli import doctor
from fedpatch.device_agent.runtime import startup
from fedpatch.device_agent.state.machine import MACHINE_NAME, clone_problem, machine_digest, note_machine
from fedpatch.shared.app import file_systems
from fedpatch.shared.app.file_systems import PassingMount
from tests.support.checkups import quiet_checkup

SERIAL = "sys/firmware/devicetree/base/serial-number"


def _board(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return root


def _card(root: Path, name: str, address: str, kind: str = "0") -> Path:
    _board(root, f"sys/class/net/{name}/address", address)
    _board(root, f"sys/class/net/{name}/addr_assign_type", kind)
    (root / f"sys/class/net/{name}/device").mkdir()
    return root


@pytest.fixture
def state(tmp_path: Path) -> Path:
    place = tmp_path / "state"
    place.mkdir()
    return place


@pytest.mark.parametrize("kind", ["serial", "address"])
def test_state_of_another_board_is_named_with_the_remedy(tmp_path: Path, state: Path, kind: str):
    roots = []
    for number in (1, 2):
        root = tmp_path / f"board{number}"
        roots.append(
            _board(root, SERIAL, f"10000000abc{number}\0")
            if kind == "serial"
            else _card(root, "eth0", f"dc:a6:32:0:0:{number}")
        )
    one, two = roots
    assert clone_problem(state, one) is None
    note_machine(state, one)
    assert clone_problem(state, one) is None
    found = clone_problem(state, two)
    assert found is not None and "begun on another machine: was its card cloned?" in found[0]
    assert "its own --device-id" in found[1] and str(state / MACHINE_NAME) in found[1]
    note_machine(state, two)
    assert clone_problem(state, two) == found, "the clone must not pass for the first board at its next start"


def test_card_on_usb_that_is_plugged_in_makes_no_other_machine(tmp_path: Path, state: Path):
    root = _card(tmp_path / "board", "wlp1s0", "dc:a6:32:00:00:01")
    note_machine(state, root)
    dock = _card(root, "enp0s20u1", "00:e0:4c:00:00:02") / "sys/class/net/enp0s20u1/device/subsystem"
    dock.symlink_to("../../../bus/usb")
    assert clone_problem(state, root) is None


def test_card_on_usb_names_a_machine_without_another(tmp_path: Path):
    root = _card(tmp_path / "board", "eth0", "dc:a6:32:00:00:01")
    (root / "sys/class/net/eth0/device/subsystem").symlink_to("../../../bus/usb")
    assert machine_digest(root)


def test_random_address_of_a_virtual_machine_names_no_machine(tmp_path: Path, state: Path):
    root = _card(tmp_path / "board", "wlan0", "02:00:00:00:00:01", kind="1")
    assert machine_digest(root) == ""
    note_machine(state, root)
    assert list(state.iterdir()) == [] and clone_problem(state, root) is None


def test_file_has_no_serial_number(tmp_path: Path, state: Path):
    note_machine(state, _board(tmp_path / "board", SERIAL, "10000000abcd\0"))
    assert b"abcd" not in (state / MACHINE_NAME).read_bytes()


def test_damaged_file_is_no_other_machine_and_is_written_anew(tmp_path: Path, state: Path):
    root = _board(tmp_path / "board", SERIAL, "1\0")
    (state / MACHINE_NAME).write_bytes(bytes(65))
    assert clone_problem(state, root) is None
    note_machine(state, root)
    assert (state / MACHINE_NAME).read_text().strip() == machine_digest(root)


def test_agent_whose_disk_refuses_starts_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(startup, "passing_mounts", lambda directory, parts: [])
    startup._watch_over_state(tmp_path / "absent", _board(tmp_path / "board", SERIAL, "1\0"))
    assert "absent/machine: " in caplog.text


def test_agent_warns_about_state_that_a_reboot_deletes_or_a_clone_has(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    note_machine(state, _board(tmp_path / "board1", SERIAL, "1\0"))
    monkeypatch.setattr(
        startup,
        "passing_mounts",
        lambda directory, parts: [PassingMount(f"{directory} is in memory", "use a disk")],
    )
    with caplog.at_level(logging.WARNING):
        startup._watch_over_state(state, _board(tmp_path / "board2", SERIAL, "2\0"))
    first, second = [record.getMessage() for record in caplog.records]
    assert first == f"{state} is in memory: daily limits, patch and privacy account then begin anew; use a disk"
    assert "begun on another machine" in second


def test_agent_warns_about_a_part_of_its_state_that_a_reboot_deletes(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    found = PassingMount(f"{state / 'models'} is in memory", "use a disk", "models")
    monkeypatch.setattr(startup, "passing_mounts", lambda directory, parts: [found])
    startup._watch_over_state(state, tmp_path)
    [record] = caplog.records
    assert record.getMessage() == f"{state / 'models'} is in memory: what is there then begins anew; use a disk"


def test_start_reads_the_table_of_mounts_once(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch):
    known, read = file_systems._known, []

    def reading(root: Path) -> list[Any]:
        read.append(root)
        return list(known(root))

    monkeypatch.setattr(file_systems, "_known", reading)
    startup._watch_over_state(state, tmp_path)
    assert read == [Path("/")]


def test_doctor_warns_about_the_state_of_another_board(tmp_path: Path, state: Path):
    note_machine(state, _board(tmp_path / "board1", SERIAL, "1\0"))
    checkup = quiet_checkup()
    doctor._check_machine(state, checkup, _board(tmp_path / "board2", SERIAL, "2\0"))
    assert [(one.name, one.verdict) for one in checkup.findings] == [("state_machine", "warn")]
