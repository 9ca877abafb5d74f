"""A dry run (--check) on a host that has fedpatch, and not yet the package of a role that the inventory has newly given it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.plays import ROLES, by_ansible, fleet_of, played, stub, tasks_of
from tests.support.paths import ROOT

PACKAGES = ("broker_package", "monitoring_package", "monitoring_node_package")
SCALED_OUT_PACKAGES = ("database_package", "broker_node_package", "balancer_package", "models_package")


def prepare_host(folder: Path, answer: str, ca_files: Sequence[str]) -> dict[str, str]:
    """Prepare a host without services, and a CA; return the fleet's settings. `answer` is what `fedpatch` runs."""
    stub(folder / "bin" / "systemctl", "echo LoadState=not-found; echo ActiveState=inactive")
    stub(folder / "fedpatch", answer)
    for name in ca_files:
        (folder / "ca" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "ca" / name).write_text(name)
    (folder / "current").mkdir()
    return {
        "fleet_program_dir": str(folder),
        "fleet_ca_dir": str(folder / "ca"),
        "fleet_control_command": str(folder / "fedpatch"),
    }


def dry_run(
    folder: Path, inventory: dict[str, Any], tasks: Sequence[dict[str, Any]], packages: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Play tasks with --check, as if apt would install each of the packages."""
    place = folder / "play"
    place.mkdir()
    play = {"hosts": "broker", "environment": {"PATH": f"{folder}/bin:/usr/bin:/bin"}, "tasks": tasks}
    installs = {"fleet_packages_known": False, **{name: {"changed": True} for name in packages}}
    return played(place, inventory, play, "--check", "-e", json.dumps(installs))


@pytest.mark.slow
@by_ansible
def test_dry_run_does_not_look_for_services_of_packages_that_it_would_install(tmp_path):
    """Mosquitto, Prometheus and node_exporter; their handlers too."""
    given = prepare_host(
        tmp_path, "echo user coordinator", ("ca.crt", "ca.crl", "broker/broker.key", "broker/broker.crt")
    )
    (tmp_path / "broker_config").symlink_to(ROOT / "broker_config")
    inventory = fleet_of({"hub": {}}, **given, monitoring_grafana=False)
    tasks = [
        tasks_of("monitoring", "node_exporter.yml"),
        tasks_of("monitoring", "main.yml"),
        tasks_of("broker", "main.yml"),
    ]
    done = dry_run(tmp_path, inventory, tasks, PACKAGES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Install the configuration" in done.stdout


@pytest.mark.slow
@by_ansible
def test_dry_run_of_a_scaled_out_fleet_has_neither_its_services_nor_its_passwords_yet(tmp_path):
    """A real run would install PostgreSQL, ejabberd, haproxy and nginx, and make the passwords and the CA of the database."""
    given = prepare_host(tmp_path, "echo modules:", ("broker/broker.key", "broker/broker.crt"))
    inventory = fleet_of({"hub": {}}, **given, fleet_user="root")
    inventory["children"] |= {group: {"hosts": {"hub": {}}} for group in ("broker_nodes", "database", "models")}
    tasks = [
        *(tasks_of(role, "main.yml") for role in ("database", "broker_node", "balancer", "models")),
        tasks_of("coordinator", "shared.yml"),
    ]
    done = dry_run(tmp_path, inventory, tasks, SCALED_OUT_PACKAGES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Install the configuration") == 2  # those of haproxy and nginx
    assert "Install the passwords and the CA of the database" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "fedpatch", "ca", "current", "play"}  # no password


@pytest.mark.slow
@by_ansible
def test_dry_run_does_not_look_for_a_service_of_fedpatch_that_it_would_install(tmp_path):
    """The host of a coordinator becomes a device too, or the other way round."""
    stub(tmp_path / "bin" / "systemctl", "echo LoadState=not-found; echo ActiveState=inactive")
    names = {"coordinator": "coordinator", "relay": "relay", "device_agent": "agent"}
    play = {
        "hosts": "broker",
        "environment": {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        "vars": {"fleet_bare": False, "coordinator_enabled": True},
        "tasks": [
            {
                "ansible.builtin.debug": {"msg": "the settings are new"},
                "changed_when": True,
                "notify": [f"Restart the {name}" for name in names.values()],
            }
        ],
        "handlers": [{"ansible.builtin.import_tasks": str(ROLES / role / "handlers" / "main.yml")} for role in names],
    }
    done = played(tmp_path, fleet_of({"hub": {}}), play, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("RUNNING HANDLER [Restart the ") == len(names)
    done = played(tmp_path, fleet_of({"hub": {}}), play)
    assert "Could not find the requested service" in done.stdout
