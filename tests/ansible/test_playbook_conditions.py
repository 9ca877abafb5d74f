"""Conditions of a playbook's own tasks: variables of a role are not defined outside the role, so such a task fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.hosts.plays import ROLES

PLAYBOOKS = sorted(path for path in ROLES.parent.glob("*.yml") if path.name != "ansible.cfg")


def variables_of_roles() -> set[str]:
    files = [*ROLES.glob("*/vars/main.yml"), *ROLES.glob("*/defaults/main.yml")]
    return {name for file in files for name in yaml.safe_load(file.read_text()) or {}}


def conditions(tasks: list[dict[str, Any]]) -> Iterator[str]:
    for task in tasks:
        for name in ("block", "rescue", "always"):
            yield from conditions(task.get(name, []))
        yield from (str(task[name]) for name in ("when", "changed_when", "failed_when", "until") if name in task)


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda path: path.stem)
def test_condition_of_a_playbooks_own_task_needs_no_variable_that_only_a_role_defines(playbook):
    known, found = variables_of_roles(), []
    for play in yaml.safe_load(playbook.read_text()):
        if play.get("roles") or "import_playbook" in play:  # the roles of a play define theirs for its tasks
            continue
        for part in ("pre_tasks", "tasks", "post_tasks"):
            for text in conditions(play.get(part, [])):
                plain = re.sub(r"'[^']*'|\w+ *\| *default\b|\.\w+", "", text)
                found += sorted(set(re.findall(r"\w+", plain)) & known)
    assert found == []
