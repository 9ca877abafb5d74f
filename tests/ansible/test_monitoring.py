"""The files of the role for the monitoring host."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.hosts.plays import HERE, ROLES, by_ansible, fleet_of, played, stub, tasks_of
from tests.monitoring.prometheus import promtool

MONITORING = ROLES / "monitoring"


def test_grafana_reads_the_dashboards_where_they_are_installed_and_keeps_its_own_directory():
    """/var/lib/grafana belongs to Grafana's user, who writes its database there."""
    tasks = yaml.safe_load((MONITORING / "tasks" / "grafana.yml").read_text())
    folders = next(task["loop"] for task in tasks if task["name"] == "Make the folders")
    installed = next(task["ansible.builtin.copy"]["dest"] for task in tasks if task["name"] == "Install the dashboards")
    provider = yaml.safe_load((MONITORING / "templates" / "grafana-dashboards.yaml.j2").read_text())["providers"][0]
    assert not [folder for folder in folders if folder.startswith("/var/lib")]
    assert installed.rstrip("/") == provider["options"]["path"] == folders[-1]


@pytest.mark.slow
@by_ansible
def test_grafana_that_apt_does_not_have_is_named_with_the_remedy(tmp_path):
    stub(tmp_path / "bin" / "apt-cache", "exit 100")
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    play = {"hosts": "monitoring", "environment": environment, "tasks": [tasks_of("monitoring", "grafana.yml")]}
    done = played(tmp_path, fleet_of({"hub": {}}), play, "--check")
    words = "Grafana is not installed, because apt on hub has no package grafana: add Grafana's apt source"
    assert words in done.stdout, done.stdout + done.stderr
    assert "Install Grafana" not in done.stdout


@by_ansible
def test_node_exporter_answers_private_networks_and_the_monitoring_host_and_is_closed_to_the_internet(tmp_path):
    """The unit admits monitoring hosts by address only, since systemd accepts no host names there."""
    addresses = {"watch-4": "203.0.113.7", "watch-6": "2001:db8::7", "named": "watch.example"}
    hosts = {name: {"ansible_host": address} for name, address in addresses.items()}
    groups = {group: {"hosts": hosts} for group in ("monitoring", "broker", "coordinator")}
    files = [str(ROLES / name / "main.yml") for name in ("fleet/vars", "monitoring/defaults")]
    template = MONITORING / "templates" / "node-exporter.conf.j2"
    shown = {"ansible.builtin.debug": {"msg": f"{{{{ lookup('ansible.builtin.template', '{template}') }}}}"}}
    play = {"hosts": "watch-4", "vars_files": files, "tasks": [shown]}
    done = played(tmp_path, {"vars": HERE | {"ansible_managed": ""}, "children": groups}, play)
    lines = re.findall(r"IPAddress(Deny|Allow)=([^\\]+)", done.stdout)
    assert lines[:2] == [("Deny", "any"), ("Allow", "localhost")], done.stdout + done.stderr
    assert lines[-2:] == [("Allow", "203.0.113.7"), ("Allow", "2001:db8::7")]
    assert {"192.168.0.0/16", "fc00::/7"} < {address for _, address in lines[2:-2]}


@by_ansible
def test_prometheus_reads_no_coordinator_where_a_relay_takes_its_place(tmp_path):
    """A relay has no metrics; its coordinator would always be reported as down."""
    files = [str(ROLES / name / "main.yml") for name in ("fleet/defaults", "fleet/vars", "monitoring/defaults")]
    shown = {"ansible.builtin.debug": {"msg": "{{ monitoring_coordinators | join(' ') }}"}}
    groups: dict[str, Any] = {group: {"hosts": {"gate": {}}} for group in ("monitoring", "broker", "coordinator")}
    found = []
    for bundle in ("", "/site-7.bundle"):
        play = {"hosts": "gate", "vars_files": files, "tasks": [shown]}
        done = played(tmp_path, {"vars": HERE | {"relay_bundle": bundle}, "children": groups}, play)
        found += re.findall(r'"msg": "(.*)"', done.stdout)
    assert found == ["127.0.0.1:9464", ""]


@by_ansible
def test_prometheus_on_the_host_of_one_coordinator_reaches_the_other_one(tmp_path):
    """The other one listens where Prometheus asks it, and its firewall admits Prometheus."""
    roles = ("fleet/defaults", "fleet/vars", "coordinator/defaults", "firewall/defaults", "firewall/vars")
    files = [str(ROLES / name / "main.yml") for name in (*roles, "monitoring/defaults")]
    admitted = "firewall_admitted | selectattr('port', 'equalto', 9464) | map(attribute='from') | flatten | join(' ')"
    asked = "monitoring_coordinators | join(' ')"
    message = (
        f"{{{{ inventory_hostname }}}} at {{{{ coordinator_metrics }}}} admits {{{{ {admitted} }}}}; {{{{ {asked} }}}}"
    )
    play = {"hosts": "coordinator", "vars_files": files, "tasks": [{"ansible.builtin.debug": {"msg": message}}]}
    hosts = {"hub": {"ansible_host": "fd00::1"}, "hub-2": {"ansible_host": "fd00::2"}}
    members = {"broker": ["hub"], "monitoring": ["hub"], "coordinator": ["hub", "hub-2"]}
    groups: dict[str, Any] = {group: {"hosts": {host: {} for host in names}} for group, names in members.items()}
    inventory = {"vars": HERE, "hosts": hosts, "children": groups}
    done = played(tmp_path, inventory, play)
    found = dict(re.findall(r'"msg": "(\S+) (.*)"', done.stdout))
    assert found["hub"] == "at 127.0.0.1:9464 admits ; 127.0.0.1:9464 [fd00::2]:9464", done.stdout + done.stderr
    assert found["hub-2"].startswith("at [::]:9464 admits fd00::1; ")


@by_ansible
def test_alertmanagers_and_entries_of_the_inventory_are_in_the_configuration_of_prometheus(tmp_path):
    files = [str(ROLES / name / "main.yml") for name in ("fleet/defaults", "fleet/vars", "monitoring/defaults")]
    more = {
        "monitoring_alertmanagers": ["127.0.0.1:9093", "am.lab:9093"],
        "monitoring_remote_write": [{"url": "https://store.lab/write", "basic_auth": {"username": "hub"}}],
        "monitoring_scrapes": [{"job_name": "router", "static_configs": [{"targets": ["router.lab:9100"]}]}],
        "monitoring_rule_files": ["/etc/prometheus/ours.yml"],
        "monitoring_retention": "7d",
    }
    groups: dict[str, Any] = {group: {"hosts": {"hub": {}}} for group in ("monitoring", "broker", "coordinator")}
    written = []
    for name, variables in {"plain": {}, "more": more}.items():
        copied = {"src": str(MONITORING / "templates" / "prometheus.yml.j2"), "dest": str(tmp_path / f"{name}.yml")}
        options = {"src": str(MONITORING / "templates" / "prometheus.default.j2"), "dest": str(tmp_path / f"{name}.sh")}
        tasks = [{"ansible.builtin.template": one} for one in (copied, options)]
        play = {"hosts": "hub", "vars_files": files, "tasks": tasks}
        done = played(tmp_path, {"vars": HERE, "children": groups}, play, "-e", json.dumps(variables))
        assert done.returncode == 0, done.stdout + done.stderr
        checked = promtool("check", "config", "--syntax-only", tmp_path / f"{name}.yml")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        written.append(yaml.safe_load((tmp_path / f"{name}.yml").read_text()))
    retained = [
        re.findall(r"retention.time=(\w+)", (tmp_path / f"{name}.sh").read_text()) for name in ("plain", "more")
    ]
    assert retained == [["90d"], ["7d"]]
    plain, full = written
    assert set(plain) == {"global", "rule_files", "scrape_configs"}
    assert full["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] == more["monitoring_alertmanagers"]
    assert full["remote_write"] == more["monitoring_remote_write"]
    assert full["scrape_configs"] == plain["scrape_configs"] + more["monitoring_scrapes"]
    assert full["rule_files"] == plain["rule_files"] + more["monitoring_rule_files"]
