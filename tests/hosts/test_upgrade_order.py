"""upgrade.yml where hosts are away or left out: those are named, and nothing goes past a device that fails or has gone.

Every host is this machine, and has the version of the wheelhouse already, unless a test gives it a former one: each part of the
playbook is played and does nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.plays import ANSIBLE, HERE, ROLES, by_ansible, played, refused, tasks_of

pytestmark = [
    by_ansible,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="the playbook gives files to root"),
]

DEVICES = [f"pi-{number}" for number in range(1, 5)]
VERSION, WHEEL = "0.1.0", b"a wheel"


def _fleet(folder: Path) -> dict[str, Any]:
    """A hub and four devices.

    One was never there (`-e absent=NAME`), or goes away before its batch (`-e away=NAME`), or while the version is copied to it
    (`-e cut=NAME`).
    """
    kind = f"{platform.machine()}-cp{sys.version_info.major}{sys.version_info.minor}"
    house = folder / "house"
    house.mkdir()
    manifest = {"version": VERSION, "wheel": "one.whl", "sha256": hashlib.sha256(WHEEL).hexdigest()}
    (house / "wheelhouse.json").write_text(
        json.dumps(manifest | {"libraries": {kind: {"file": "none", "digest": "abc"}}})
    )
    (house / "one.whl").write_bytes(WHEEL)
    for host in ("hub", *DEVICES):
        place = folder / host / "versions" / VERSION
        (place / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages").mkdir(parents=True)
        (place / "bin").mkdir()
        (place / "bin" / "python").touch()
        (place / "complete").write_text(f"{manifest['sha256']}\n")
        (place / "one.whl").write_bytes(WHEEL)
        (folder / host / "libraries" / "abc").mkdir(parents=True)
        (folder / host / "libraries" / "abc" / "complete").touch()
        (folder / host / "current").symlink_to(f"versions/{VERSION}")
    given = {"fleet_wheelhouse": str(house), "fleet_program_dir": f"{folder}/{{{{ inventory_hostname }}}}"}
    # None listens at port 1, and the lab has no sudo.
    lost = "(away | default('')) == inventory_hostname and ansible_play_name is search('batch by batch')"
    lost = f"{lost} or (absent | default('')) == inventory_hostname"
    lost = f"{lost} or ((cut | default('')) == inventory_hostname and program_has_libraries is defined)"
    reached = {
        "ansible_connection": f"{{{{ 'ssh' if {lost} else 'local' }}}}",
        "ansible_host": "127.0.0.1",
        "ansible_port": 1,
    }
    hub: dict[str, Any] = {"hosts": {"hub": {}}}
    groups = {"broker": hub, "coordinator": hub, "devices": {"hosts": {device: {} for device in DEVICES}}}
    return {"vars": {**HERE, **reached, **given, "ansible_become": False}, "children": groups}


def _asked(out: str) -> dict[str, list[str]]:
    """Hosts for which the upgrade was decided, by play."""
    plays = re.split(r"^PLAY \[(.*)\] \**$", out, flags=re.MULTILINE)
    decided: dict[str, list[str]] = {}
    for name, text in zip(plays[1::2], plays[2::2], strict=True):
        for part in re.findall(r"^TASK \[\w+ : Decide\] \**\n((?:.+\n)*)", text, re.MULTILINE):
            decided.setdefault(name, []).extend(re.findall(r"^ok: \[(\S+)\]", part, re.MULTILINE))
    return {name: sorted(hosts) for name, hosts in decided.items()}


def _with_former_version(folder: Path, host: str) -> Path:
    """Let a host have the version 0.0.9 in use; return its folder."""
    place = folder / host
    (place / "versions" / "0.0.9").mkdir()
    (place / "current").unlink()
    (place / "current").symlink_to("versions/0.0.9")
    return place


def _with_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A service that hosts may have; options of the playbook that name it.

    The connection is lost after its move (`-e lost=NAME`), or it is not healthy (`-e unwell=true`).
    """
    tasks = folder / "roles" / "service" / "tasks"
    tasks.mkdir(parents=True)
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    move = [
        tasks_of("program", "activate.yml"),
        {"ansible.builtin.ping": {}, "vars": away, "when": "(lost | default('')) == inventory_hostname"},
    ]
    watch = [{"ansible.builtin.fail": {"msg": "unwell"}, "when": "unwell | default(false)"}]
    for name, part in (("move", move), ("watch", watch)):
        (tasks / f"{name}.yml").write_text(json.dumps(part))
    monkeypatch.setenv("ANSIBLE_ROLES_PATH", f"{folder}/roles:{ROLES}")
    return ["-e", json.dumps({"program_services": ["service"]})]


def test_device_that_goes_away_after_its_services_began_to_move_stops_those_after_it(tmp_path, monkeypatch):
    """Ansible would go on: it counts hosts that fail, and not those that it reaches no more.

    Its batch is that of the inventory, though it answers after the others.
    """
    fleet = _fleet(tmp_path)
    fleet["children"]["devices"]["hosts"]["pi-2"] = {"upgrade_canary": "{{ lookup('pipe', 'sleep 1; echo pi-1') }}"}
    _with_former_version(tmp_path, "pi-2")
    options = [*_with_service(tmp_path, monkeypatch), "-e", json.dumps({"upgrade_batches": [2, "100%"]})]
    done = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", "-e", "lost=pi-2", *options)
    assert done.returncode != 0
    assert list(_asked(done.stdout).values()) == [["pi-1"], ["hub"], ["pi-2", "pi-3"]], done.stdout + done.stderr
    assert refused(done) == {"pi-4": "pi-2 cannot be reached any more; no further host is upgraded"}


@pytest.mark.parametrize(
    ("gone", "batch"), [("away=pi-2", 1), ("cut=pi-2", 2)], ids=["before its batch", "in its batch"]
)
def test_device_that_goes_away_before_its_services_move_is_left_out_and_named(tmp_path, gone, batch):
    """In a large fleet some device goes away in each upgrade, and has its version still."""
    batches = json.dumps({"upgrade_batches": [batch, "100%"]})
    done = played(tmp_path, _fleet(tmp_path), ANSIBLE / "upgrade.yml", "-e", gone, "-e", batches)
    assert list(_asked(done.stdout).values()) == [["pi-1"], ["hub"], ["pi-3", "pi-4"]], done.stdout + done.stderr
    assert refused(done) == {}
    assert "pi-2: away, not upgraded; repeat the command when back" in done.stdout


@pytest.mark.parametrize(
    ("absent", "upgraded"),
    [("pi-1", [["pi-2"], ["hub"], ["pi-3", "pi-4"]]), ("pi-3", [["pi-1"], ["hub"], ["pi-2", "pi-4"]])],
)
def test_device_that_is_away_is_left_out_and_named(tmp_path, absent, upgraded):
    """Another device is the canary for it, and the same command upgrades it when it is back."""
    fleet = _fleet(tmp_path)
    done = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", "-e", f"absent={absent}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(_asked(done.stdout).values()) == upgraded
    assert f"{absent}: away, not upgraded" in done.stdout
    again = played(tmp_path, fleet, ANSIBLE / "upgrade.yml")
    assert sorted(host for hosts in _asked(again.stdout).values() for host in hosts) == ["hub", *DEVICES]


def test_nothing_is_upgraded_while_the_coordinator_is_away(tmp_path):
    done = played(tmp_path, _fleet(tmp_path), ANSIBLE / "upgrade.yml", "-e", "absent=hub")
    assert done.returncode != 0 and _asked(done.stdout) == {}, done.stdout + done.stderr
    assert "hub cannot be reached" in refused(done)["pi-1"]


def test_there_is_no_upgrade_of_a_coordinator_without_a_canary(tmp_path):
    """A name that no inventory has, or a first device that --limit leaves out; another may take its place."""
    fleet = _fleet(tmp_path)
    for options, words in (
        (
            ["-e", "upgrade_canary=pi1"],
            "there is no canary: pi1 is not in the inventory, is away, or is left out by --limit",
        ),
        (["--limit", "!pi-1"], "or is left out by --limit; name a device, e.g. -e upgrade_canary=pi-2"),
    ):
        done = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", *options)
        assert done.returncode != 0 and _asked(done.stdout) == {}, done.stdout + done.stderr
        assert words in refused(done)["hub"]
    done = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", "--limit", "!pi-1", "-e", "upgrade_canary=pi-3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(_asked(done.stdout).values()) == [["pi-3"], ["hub"], ["pi-2", "pi-4"]]
    alone = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", "--limit", "pi-4")
    assert list(_asked(alone.stdout).values()) == [["pi-4"]], alone.stdout + alone.stderr


def test_upgrade_whose_connection_was_lost_is_repeated_with_its_check_and_its_rollback(tmp_path, monkeypatch):
    """The link names the version already; the service may still run with the former one, or not at all."""
    fleet = _fleet(tmp_path)
    place = _with_former_version(tmp_path, "pi-1")
    given = ["--limit", "pi-1", *_with_service(tmp_path, monkeypatch)]

    lost = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", *given, "-e", "lost=pi-1")
    assert re.search(r"^pi-1 .* unreachable=1", lost.stdout, re.MULTILINE), lost.stdout + lost.stderr
    assert os.readlink(place / "current") == f"versions/{VERSION}"
    unwell = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", *given, "-e", '{"unwell": true}')
    assert f"pi-1 was not healthy with {VERSION} and has returned to 0.0.9" in refused(unwell).get("pi-1", ""), (
        unwell.stdout
    )
    assert os.readlink(place / "current") == "versions/0.0.9"
    done = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert os.readlink(place / "current") == f"versions/{VERSION}"
    again = played(tmp_path, fleet, ANSIBLE / "upgrade.yml", *given)
    assert re.search(r"^pi-1 .* changed=0 ", again.stdout, re.MULTILINE), again.stdout
