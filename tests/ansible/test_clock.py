"""The clock of a host is set before apt, which refuses signatures of what it takes for the future."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.hosts.plays import ROLES, by_ansible, fleet_of, played, refused, stub, tasks_of

TASKS = ROLES / "common" / "tasks"


def test_clock_is_set_before_any_package_is_asked_for():
    names = [task["name"] for task in yaml.safe_load((TASKS / "main.yml").read_text())]
    first = names.index("Set the clock before packages are installed")
    assert first < names.index("Copy packages to hosts without internet")
    assert first < names.index("Install the packages that every host needs")


def test_clock_is_set_on_machines_only_and_only_if_it_is_wrong():
    read, *_, set_clock = yaml.safe_load((TASKS / "first_clock.yml").read_text())
    assert read["check_mode"] is False and read["changed_when"] is False
    assert "--set=@" in set_clock["ansible.builtin.command"]["argv"][2]
    conditions = " and ".join(map(str, set_clock["when"]))
    for part in ("not fleet_bare", "virtualization_type not in common_containers", "abs > common_clock_tolerance_s"):
        assert part in conditions


@pytest.mark.medium
@by_ansible
def test_clock_that_a_time_server_has_set_is_not_replaced_by_that_of_the_control_machine(tmp_path: Path):
    """The host's `date` is a day ahead in one case; `fleet_bare` keeps the play from setting the clock of this machine."""
    hosts = {}
    for name, synchronised, ahead_s in (("set", "yes", 86_400), ("unset", "no", 86_400), ("equal", "yes", 0)):
        stub(tmp_path / name / "timedatectl", f"echo {synchronised}")
        stub(tmp_path / name / "date", f'echo $(($(/bin/date +%s) + {ahead_s})) "${{2#+%s }}"')
        hosts[name] = {"path_of_host": f"{tmp_path / name}:/usr/bin:/bin"}
    play = {
        "hosts": "devices",
        "environment": {"PATH": "{{ path_of_host }}"},
        "tasks": [tasks_of("common", "first_clock.yml", fleet_bare=True)],
    }
    (tmp_path / "play").mkdir()
    done = played(tmp_path / "play", fleet_of(hosts), play)
    found = refused(done)
    assert list(found) == ["set"], done.stdout
    assert re.search(r"the clock of set, which a time server has set, differs by 8(639\d|64\d\d) s", found["set"])
    assert "set the clock here" in found["set"]
