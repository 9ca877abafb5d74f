"""The role of the monitoring host, as files."""

from __future__ import annotations

import yaml

from tests.hosts.plays import ROLES

MONITORING = ROLES / "monitoring"


def test_grafana_reads_the_dashboards_where_they_are_installed_and_keeps_its_own_directory():
    """/var/lib/grafana belongs to Grafana's user, who writes its database there."""
    tasks = yaml.safe_load((MONITORING / "tasks" / "grafana.yml").read_text())
    folders = next(task["loop"] for task in tasks if task["name"] == "Make the folders")
    installed = next(task["ansible.builtin.copy"]["dest"] for task in tasks if task["name"] == "Install the dashboards")
    provider = yaml.safe_load((MONITORING / "templates" / "grafana-dashboards.yaml.j2").read_text())["providers"][0]
    assert not [folder for folder in folders if folder.startswith("/var/lib")]
    assert installed.rstrip("/") == provider["options"]["path"] == folders[-1]
