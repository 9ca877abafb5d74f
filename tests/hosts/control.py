"""The control host of booted hosts: an inventory, and ansible-playbook as an operator calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts.machines import Machines
from tests.support.paths import ROOT

_COUNTS = re.compile(
    r"^(?P<host>[\w-]+)\s*: ok=\d+\s+changed=(?P<changed>\d+)\s+unreachable=(?P<away>\d+)\s+failed=(?P<failed>\d+)",
    re.M,
)


@dataclass(frozen=True)
class Played:
    """What became of a playbook. `changed` and `failed` count tasks, by host."""

    code: int
    out: str
    changed: Mapping[str, int]
    failed: Mapping[str, int]


def played_of(code: int, out: str) -> Played:
    """Return what became of a playbook from its exit code and its output; of several, the last recap of a host counts."""
    rows = list(_COUNTS.finditer(out))
    changed = {row["host"]: int(row["changed"]) for row in rows}
    return Played(code, out, changed, {row["host"]: int(row["failed"]) + int(row["away"]) for row in rows})


class Control:
    """Plays the playbooks of ansible/ with an inventory of `machines`: `groups` of them, settings of all or of one.

    `options` go with every play.
    """

    def __init__(self, machines: Machines, folder: Path) -> None:
        self._machines = machines
        self.folder = folder
        self.inventory = folder / "inventory"
        (self.inventory / "group_vars" / "all").mkdir(parents=True)
        self.groups: Mapping[str, list[str]] = {}
        self.patience_s = 1700.0
        self.options: list[str] = []
        self.settings: dict[str, Any] = {}
        self.host_settings: dict[str, dict[str, Any]] = {}

    def _write_inventory(self) -> None:
        common = {
            "ansible_ssh_private_key_file": str(self._machines.key),
            "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
            **self.settings,
        }
        children = {group: {"hosts": {host: self._of(host) for host in hosts}} for group, hosts in self.groups.items()}
        (self.inventory / "hosts.json").write_text(json.dumps({"all": {"children": children}}))
        (self.inventory / "group_vars" / "all" / "fleet.json").write_text(json.dumps(common))

    def _of(self, host: str) -> dict[str, Any]:
        reached = {"ansible_host": self._machines.address(host), "ansible_user": self._machines.user(host)}
        return {**reached, **self.host_settings.get(host, {})}

    def _environment(self) -> dict[str, str]:
        return {
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"),
            # Connections that stay open are known by address alone, and other labs have the same addresses.
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
            "PYTHONPATH": str(ROOT),
        }

    def play(self, book: str, *options: str, check: bool = True, **variables: Any) -> Played:
        """The playbook `book`, in the control host's network; AssertionError where it fails and `check` wants it whole."""
        self._write_inventory()
        program = Path(sysconfig.get_path("scripts"), "ansible-playbook")
        given = ["-e", json.dumps(variables)] if variables else []
        command = [
            *self._machines.inside_control,
            str(program),
            "-i",
            str(self.inventory),
            book,
            *given,
            *self.options,
            *options,
        ]
        done = subprocess.run(
            command,
            cwd=ROOT / "ansible",
            env={**os.environ, **self._environment()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self.patience_s,
            check=False,
        )
        played = played_of(done.returncode, done.stdout)
        assert not check or played.code == 0, done.stdout[-8000:]
        return played
