"""The list of Debian packages in docs/how-to/fleet.md, for hosts without internet."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import yaml

from tests.hosts.plays import ROLES
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "fleet.md").read_text("utf-8")


def _tasks(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from _tasks(task.get(part, []))


def _installed() -> set[str]:
    """The packages that tasks of the roles install."""
    found = set(yaml.safe_load((ROLES / "common" / "vars" / "main.yml").read_text())["common_packages"])
    for path in ROLES.glob("*/tasks/*.yml"):
        for task in _tasks(yaml.safe_load(path.read_text())):
            name = task.get("ansible.builtin.apt", {}).get("name", [])
            found |= {one for one in ([name] if isinstance(name, str) else name) if "{{" not in one}
    return found


def test_page_lists_each_package_that_the_roles_install():
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
    assert _installed() <= set(re.findall(r"`([\w-]+)`", rows))
    assert len(_installed()) > 10


def test_commands_of_the_page_fetch_the_packages_of_devices_and_of_a_hub():
    (block,) = re.findall(r"^    packages=\"(.*)\"\n((?:    .*\n)+)", PAGE, re.MULTILINE)
    elsewhere = {"ejabberd", "grafana", "haproxy", "nginx-light", "postgresql"}
    assert set(block[0].split()) == _installed() - elsewhere
    checked = subprocess.run(["bash", "-n"], input=block[1], text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
