"""The modes of state directories: the roles set modes that the doctors accept, so no remedy of a doctor is undone by a play."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.diagnostics.host import Space, check_state_dir
from tests.hosts.plays import ROLES


def _tasks(node: Any) -> list[dict[str, Any]]:
    """Return all tasks of a file, also those in blocks."""
    return [inner for task in node for inner in (task, *_tasks(task.get("block", [])))]


@pytest.mark.parametrize(
    ("file", "private"),
    [("coordinator/tasks/identity.yml", False), ("device_agent/tasks/main.yml", True)],
)
def test_doctor_accepts_the_mode_of_the_state_directory_that_the_role_sets(tmp_path, file, private):
    text = (ROLES / file).read_text("utf-8")
    (mode,) = {
        task["ansible.builtin.file"]["mode"]
        for task in _tasks(yaml.safe_load(text))
        if re.search(r"\{\{ \w+_state_dir \}\}", str(task)) and "ansible.builtin.file" in task
    }
    tmp_path.chmod(int(mode, 8))
    checkup = Checkup(show=lambda finding: None, say=lambda text: None)
    check_state_dir(tmp_path, Space(2**20, 4 * 2**20, "a model"), checkup, private=private)
    assert [one.verdict for one in checkup.findings if one.name == "state_dir"] == ["ok"]
