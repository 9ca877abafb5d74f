"""A dry run (--check) on a host that has fedpatch, and not yet the package of a role that the inventory has newly given it."""

from __future__ import annotations

import json

import pytest

from tests.hosts.plays import by_ansible, fleet_of, played, stub, tasks_of
from tests.support.paths import ROOT

PACKAGES = ("broker_package", "monitoring_package", "monitoring_node_package")


@pytest.mark.slow
@by_ansible
def test_dry_run_does_not_look_for_services_of_packages_that_it_would_install(tmp_path):
    """Mosquitto, Prometheus and node_exporter; their handlers too."""
    stub(tmp_path / "bin" / "systemctl", "echo LoadState=not-found; echo ActiveState=inactive")
    stub(tmp_path / "fedpatch", "echo user coordinator")
    for name in ("ca.crt", "ca.crl", "broker/broker.key", "broker/broker.crt"):
        (tmp_path / "ca" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ca" / name).write_text(name)
    (tmp_path / "current").mkdir()
    (tmp_path / "broker_config").symlink_to(ROOT / "broker_config")
    folder = tmp_path / "play"
    folder.mkdir()
    inventory = fleet_of(
        {"hub": {}},
        fleet_program_dir=str(tmp_path),
        fleet_ca_dir=str(tmp_path / "ca"),
        fleet_control_command=str(tmp_path / "fedpatch"),
        monitoring_grafana=False,
    )
    tasks = [
        tasks_of("monitoring", "node_exporter.yml"),
        tasks_of("monitoring", "main.yml"),
        tasks_of("broker", "main.yml"),
    ]
    play = {"hosts": "broker", "environment": {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, "tasks": tasks}
    # In place of apt, which would install all of them.
    installs = {"fleet_packages_known": False, **{name: {"changed": True} for name in PACKAGES}}
    done = played(folder, inventory, play, "--check", "-e", json.dumps(installs))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Install the configuration" in done.stdout
