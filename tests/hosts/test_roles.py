"""The roles of ansible/ as files: what each can be told is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROLES = Path(__file__).resolve().parents[2] / "ansible" / "roles"
NAMES = sorted(path.name for path in ROLES.iterdir())
REQUIRED = {"fleet_name"}


def _defaults(role: str) -> dict:
    return yaml.safe_load((ROLES / role / "defaults" / "main.yml").read_text()) or {}


@pytest.mark.parametrize("role", NAMES)
def test_every_default_has_a_type_and_a_description(role):
    """meta/argument_specs.yml, by which Ansible checks what it is given, knows each default and nothing else."""
    specs = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    options = specs["main"].get("options", {})
    assert set(options) - REQUIRED == set(_defaults(role))
    assert all(option["description"] and option["type"] for option in options.values())


@pytest.mark.parametrize("role", NAMES)
def test_every_role_says_what_it_is(role):
    """meta/main.yml holds a description."""
    told = yaml.safe_load((ROLES / role / "meta" / "main.yml").read_text())
    assert told["galaxy_info"]["description"]


def test_only_modules_of_ansible_core_are_used():
    """A control host needs no collection."""
    tasks = [*ROLES.rglob("tasks/*.yml"), *ROLES.rglob("handlers/*.yml"), *ROLES.parent.glob("*.yml")]
    named = {
        name
        for path in tasks
        for name in re.findall(r"^\s+([a-z_]+\.[a-z_]+)\.[a-z_]+:", path.read_text(), re.MULTILINE)
    }
    assert named == {"ansible.builtin"}
