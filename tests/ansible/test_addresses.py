"""Hosts by address or by name, where a role treats the two differently."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.hosts.plays import HERE, ROLES, by_ansible, fleet_of, played, tasks_of

# Both names have hexadecimal digits only, apart from the dot.
NAMES = ["c1", "cafe.abc"]


@by_ansible
def test_postgresql_admits_addresses_with_their_length_and_networks_and_names_as_they_are(tmp_path):
    [block] = [task for task in yaml.safe_load((ROLES / "database/tasks/main.yml").read_text()) if "block" in task]
    [rules] = [task["ansible.builtin.blockinfile"]["block"] for task in block["block"] if "Admit" in task["name"]]
    clients = ["10.0.0.1", "FD00::1", "10.0.0.0/8", "fd00::/8", *NAMES]
    shown = {"ansible.builtin.debug": {"msg": rules}, "vars": {"database_clients": clients}}
    done = played(tmp_path, fleet_of({"hub": {}}), {"hosts": "broker", "tasks": [shown]})
    wanted = ["10.0.0.1/32", "FD00::1/128", "10.0.0.0/8", "fd00::/8", *NAMES]
    assert re.findall(r"hostssl fedpatch fedpatch (\S+) scram", done.stdout) == wanted, done.stdout + done.stderr


@by_ansible
def test_firewall_refuses_a_name_that_is_hexadecimal_digits_alone(tmp_path):
    admitted = [{"port": 8883, "by": "firewall_clients", "from": ["10.0.0.0/8", "fd00::1", NAMES[0]]}]
    task = tasks_of("firewall", "close.yml", firewall_admitted=admitted)
    done = played(tmp_path, fleet_of({"hub": {}}), {"hosts": "broker", "tasks": [task]}, "--check")
    assert re.findall(r"failed: \[hub\] \(item=(\S+)\)", done.stdout) == [NAMES[0]], done.stdout + done.stderr
    assert "neither an address nor a network" in done.stdout


@pytest.mark.slow
@by_ansible
def test_services_listen_where_hosts_with_ipv6_addresses_are_reached(tmp_path):
    """The broker for a coordinator on another host, and the metrics of that coordinator."""
    files = [
        str(ROLES / name / "main.yml")
        for name in ("fleet/defaults", "fleet/vars", "broker/defaults", "coordinator/defaults")
    ]
    tasks = [{"ansible.builtin.debug": {"msg": "{{ broker_coordinator_listen }} {{ coordinator_metrics }}"}}]
    listens = []
    for network in ("192.168.1.", "fd00::"):
        hosts = {"broker": "mqtt", "coordinator": "hub", "monitoring": "watch"}
        groups = {group: {"hosts": {host: {"ansible_host": f"{network}{len(host)}"}}} for group, host in hosts.items()}
        play = {"hosts": "coordinator", "vars_files": files, "tasks": tasks}
        done = played(tmp_path, {"vars": HERE, "children": groups}, play)
        listens += re.findall(r'"msg": "(.*)"', done.stdout)
    assert listens == ["0.0.0.0 0.0.0.0:9464", ":: [::]:9464"], done.stdout + done.stderr


@pytest.mark.slow
@by_ansible
def test_services_listen_on_ipv6_only_where_the_host_has_it(tmp_path):
    """With `ipv6.disable=1` the kernel refuses [::], and a service that names it does not start."""
    roles = {"balancer": "haproxy.cfg", "broker_node": "ejabberd.yml", "models": "fedpatch.conf"}
    files = [str(ROLES / "fleet" / kind / "main.yml") for kind in ("defaults", "vars")]
    files += [str(ROLES / "broker_node" / "vars" / "main.yml"), str(ROLES / "models" / "defaults" / "main.yml")]
    variables = HERE | {"ansible_managed": "", "broker_node_rules": {"stdout": ""}, "fleet_ca_dir": str(tmp_path)}
    hosts: dict[str, list[str]] = {"both": ["fe80::2"], "old": []}
    everywhere: dict[str, Any] = {"hosts": {host: {} for host in hosts}}
    groups = dict.fromkeys(("broker", "broker_nodes", "coordinator"), everywhere)
    known = {"ansible_all_ipv6_addresses": "{{ found[inventory_hostname] }}", "cacheable": True}
    tasks: list[dict[str, Any]] = [{"ansible.builtin.set_fact": known}]
    for role, name in roles.items():
        wanted = f"{{{{ lookup('ansible.builtin.template', '{ROLES / role / 'templates' / name}.j2') }}}}"
        copied = {"content": wanted, "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}-{role}", "mode": "0600"}
        tasks.append({"ansible.builtin.copy": copied})
    play = {"hosts": "broker", "vars_files": files, "vars": {"found": hosts}, "tasks": tasks}
    done = played(tmp_path, {"vars": variables, "children": groups}, play)
    assert done.returncode == 0, done.stdout + done.stderr
    listens = {
        host: [
            line.strip()
            for role in roles
            for line in (tmp_path / f"{host}-{role}").read_text().splitlines()
            if re.match(r" +(bind|ip:|listen) ", line)
        ]
        for host in hosts
    }
    assert listens == {
        "both": ["bind :::8883 v4v6", 'ip: "::"', "listen 8443 ssl;", "listen [::]:8443 ssl;"],
        "old": ["bind *:8883", 'ip: "0.0.0.0"', "listen 8443 ssl;"],
    }
