"""Plays that take no host: each one of the inventory is this machine, and its files lie in folders of the test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

ANSIBLE = ROOT / "ansible"
ROLES = ANSIBLE / "roles"
# Of every host.
HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "fleet_name": "kitchen"}

by_ansible = pytest.mark.skipif(
    find_spec("ansible") is None, reason="Ansible is not installed (pip install 'fedpatch[dev]')"
)


def played(
    folder: Path, inventory: dict[str, Any], book: dict[str, Any] | Path, *options: str
) -> subprocess.CompletedProcess[str]:
    """What became of a playbook, or of a play without facts, with an inventory of its own."""
    with begun(folder, inventory, book, *options) as playbook:
        try:
            out, err = playbook.communicate(timeout=300)
        finally:
            playbook.kill()
    return subprocess.CompletedProcess(playbook.args, playbook.returncode, out, err)


def begun(folder: Path, inventory: dict[str, Any], book: dict[str, Any] | Path, *options: str) -> subprocess.Popen[str]:
    """A playbook, or a play without facts, that has just begun."""
    (folder / "hosts.json").write_text(json.dumps({"all": inventory}))
    if isinstance(book, dict):
        (folder / "look.json").write_text(json.dumps([{"gather_facts": False, **book}]))
        book = folder / "look.json"
    given = {
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",  # it runs in no other locale than one of UTF-8
    }
    command = [sys.executable, "-m", "ansible.cli.playbook", "-i", str(folder / "hosts.json"), str(book), *options]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ANSIBLE, env={**os.environ, **given}, **pipes)


def refused(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The last message of each failed host."""
    failed = re.findall(r"^fatal: \[(\S+)\]: FAILED! => (.*)$", done.stdout, re.MULTILINE)
    return {host: json.loads(result)["msg"] for host, result in failed}


def tasks_of(role: str, file: str, **given: Any) -> dict[str, Any]:
    """A task that plays a file of a role's tasks; `given` counts more than the role's own variables."""
    return {"ansible.builtin.include_role": {"name": role, "tasks_from": file}, "vars": given}


def fleet_of(hosts: dict[str, dict[str, Any]], **variables: Any) -> dict[str, Any]:
    """An inventory whose hosts are devices, and the first of them is the rest."""
    rest: dict[str, Any] = {"hosts": {next(iter(hosts)): {}}}
    groups: dict[str, Any] = {"broker": rest, "coordinator": rest, "monitoring": rest, "devices": {"hosts": hosts}}
    return {"vars": HERE | variables, "children": groups}


def stub(path: Path, text: str) -> None:
    """Write a shell script that takes the place of a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
