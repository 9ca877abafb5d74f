"""Bundles of relays, which the CA's folder keeps for their sites."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts.plays import ANSIBLE, by_ansible, fleet_of, played, refused, tasks_of

PROGRAM = str(Path(sysconfig.get_path("scripts"), "fedpatch"))
RELAYS: dict[str, Any] = {"fleet_control_command": PROGRAM, "fleet_relays": ["site-7"]}


def _play_of(playbook: str) -> dict[str, Any]:
    """The play of a playbook that makes the CA on the control host."""
    plays: list[dict[str, Any]] = yaml.safe_load((ANSIBLE / playbook).read_text("utf-8"))
    [found] = [play for play in plays if {"role": "authority"} in play.get("roles", [])]
    return found


@pytest.mark.slow
@by_ansible
def test_relay_gets_another_certificate_before_its_own_ends_unless_it_was_revoked(tmp_path):
    """An interrupted renewal is repeated; the former certificate stays valid until the site has the bundle."""
    ca = tmp_path / "ca"
    inventory = fleet_of({"hub": {}}, fleet_ca_dir=str(ca), **RELAYS)
    of_site = play = _play_of("site.yml")
    bundle = ca / "relays" / "site-7.bundle"
    changed, certificates = [], []
    for renew_days in (30, 30, 400):
        if renew_days > 30:
            bundle.with_suffix(".bundle.new").write_text("torn")
            play = {name: part for name, part in of_site.items() if name != "roles"}
        done = played(tmp_path, inventory, play, "-e", f"authority_renew_days={renew_days}")
        assert done.returncode == 0, done.stdout + done.stderr
        changed += re.findall(r"changed=(\d+)", done.stdout)
        certificates.append(json.loads(bundle.read_text())["certificate"])
    assert changed == ["3", "0", "1"]
    assert certificates[0] == certificates[1] != certificates[2]
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]
    entries = json.loads((ca / "index.json").read_text())["entries"]
    assert [one["revoked_at"] for one in entries if one["name"] == "site-7"] == [0, 0]
    subprocess.run([PROGRAM, "device", "revoke", "site-7", "--ca-dir", ca], check=True)
    done = played(tmp_path, inventory, play)
    assert refused(done)["hub"].startswith("site-7 was revoked: remove it from fleet_relays"), done.stdout


@pytest.mark.slow
@by_ansible
def test_relay_with_a_password_gets_the_renewed_certificate_of_the_ca(tmp_path):
    ca = tmp_path / "ca"
    inventory = fleet_of({"hub": {}}, fleet_ca_dir=str(ca), **RELAYS)
    inventory["children"]["broker_nodes"] = {"hosts": {"hub": {}}}
    bundle, texts, changed = ca / "relays" / "site-7.bundle", [], []
    for renewed in (False, True, False):
        if renewed:
            (ca / "ca.crt").write_text((ca / "ca.crt").read_text() + "renewed\n")
        done = played(tmp_path, inventory, _play_of("scale_out.yml"))
        assert done.returncode == 0, done.stdout + done.stderr
        changed += re.findall(r"changed=(\d+)", done.stdout)
        texts.append(bundle.read_text())
    first, second = (json.loads(text) for text in texts[:2])
    assert first["password"] and second == first | {"ca": first["ca"] + "renewed\n"}
    assert (changed[1:], texts[2]) == (["1", "0"], texts[1])
    assert bundle.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@by_ansible
def test_path_of_a_relays_bundle_may_begin_with_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "site-7.bundle").write_text("{}")
    hosts: dict[str, Any] = {"gate": {"relay_bundle": "~/site-7.bundle"}, "lost": {"relay_bundle": "~/none.bundle"}}
    play = {"hosts": "devices", "tasks": [tasks_of("relay", "main.yml")]}
    done = played(tmp_path, fleet_of(hosts), play, "-e", '{"fleet_bare": true}')
    refusals = refused(done)
    assert set(refusals) == {"lost"}, done.stdout + done.stderr
    assert "the relay has no identity in the fleet above" in refusals["lost"]


@by_ansible
def test_relay_without_a_bundle_is_refused_with_the_remedy(tmp_path):
    play = {"hosts": "devices", "tasks": [tasks_of("relay", "main.yml")]}
    done = played(tmp_path, fleet_of({"gate": {}}), play, "-e", '{"fleet_bare": true}')
    assert refused(done)["gate"].startswith("the relay has no identity in the fleet above: set relay_bundle"), (
        done.stdout
    )
