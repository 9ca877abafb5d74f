"""Removal of user, exporter and files from a retired device."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.hosts.plays import HERE, ROLES, by_ansible, played


@by_ansible
def test_user_and_exporter_are_removed_from_a_device_that_has_no_other_part_in_the_fleet(tmp_path):
    """The hub of a small fleet may be a device too, and keeps the user of its coordinator."""
    tasks = yaml.safe_load((ROLES / "device_agent" / "tasks" / "remove.yml").read_text())
    (rest,) = (task for task in tasks if "block" in task)
    removed = {name for task in rest["block"] for name in task}
    assert {"ansible.builtin.apt", "ansible.builtin.user", "ansible.builtin.group"} < removed
    groups = {"broker": ["mqtt"], "coordinator": ["hub"], "monitoring": ["watch"], "devices": ["hub", "pi", "watch"]}
    children: dict[str, Any] = {group: {"hosts": {host: {} for host in hosts}} for group, hosts in groups.items()}
    shown = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} is cleared"}, "when": rest["when"]}
    done = played(tmp_path, {"vars": HERE, "children": children}, {"hosts": "devices", "tasks": [shown]})
    assert re.findall(r"(\w+) is cleared", done.stdout) == ["pi"], done.stdout + done.stderr
