"""The clock of a host is set before apt, which refuses signatures of what it takes for the future."""

from __future__ import annotations

import yaml

from tests.support.paths import ROOT

TASKS = ROOT / "ansible" / "roles" / "common" / "tasks"


def test_clock_is_set_before_any_package_is_asked_for():
    names = [task["name"] for task in yaml.safe_load((TASKS / "main.yml").read_text())]
    first = names.index("Set the clock before packages are installed")
    assert first < names.index("Copy packages to hosts without internet")
    assert first < names.index("Install the packages that every host needs")


def test_clock_is_set_on_machines_only_and_only_if_it_is_wrong():
    read, set_clock = yaml.safe_load((TASKS / "first_clock.yml").read_text())
    assert read["check_mode"] is False and read["changed_when"] is False
    assert "--set=@" in set_clock["ansible.builtin.command"]["argv"][2]
    conditions = " and ".join(map(str, set_clock["when"]))
    for part in ("not fleet_bare", "virtualization_type not in common_containers", "abs > common_clock_tolerance_s"):
        assert part in conditions
