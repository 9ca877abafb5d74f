"""`--help` of each command, and the examples on docs/reference/cli.md."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fedpatch.coordinator.runtime.changeable_settings import MAY_CHANGE
from fedpatch.shared import __version__
from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from scripts.reference.commands import PROGRAMS, children, commands
from scripts.reference.configuration import COMMANDS as COMMANDS_OF_SETTINGS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
FOUND = {path: command for name, app in PROGRAMS.items() for path, command in commands(get_command(app), (name,))}
COMMANDS = list(FOUND)
WITH_RARE_OPTIONS = [path for path, command in FOUND.items() if command.rare_options]


@pytest.mark.medium
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(path):
    program, *names = path
    result = CliRunner().invoke(PROGRAMS[program], [*names, "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    assert result.exit_code == 0
    assert f"Example: {' '.join(path)}" in result.stdout
    assert re.search(rf"^    {' '.join(path)}(\s|$)", PAGE, re.MULTILINE)


def options_in(path, option):
    """Return the long options that the help of a command has in its panels, and the last line of the help."""
    program, *names = path
    shown = CliRunner().invoke(
        PROGRAMS[program], [*names, option], prog_name=program, env={"COLUMNS": "300", "TERM": "dumb"}
    )
    assert shown.exit_code == 0
    return set(re.findall(r"^│ (--[a-z0-9-]+)", shown.stdout, re.MULTILINE)), shown.stdout.rstrip().splitlines()[
        -1
    ].strip()


@pytest.mark.medium
@pytest.mark.parametrize("path", WITH_RARE_OPTIONS, ids=" ".join)
def test_help_leaves_out_the_rare_options_alone_and_help_all_shows_every_option(path):
    options = [one for one in FOUND[path].params if one.param_type_name == "option" and not one.hidden]
    rare = {one.opts[0] for one in options if one.name in FOUND[path].rare_options}
    common, last = options_in(path, "--help")
    assert common == {one.opts[0] for one in options} - rare | {"--help"}
    assert last == f"{len(rare)} more options: {' '.join(path)} --help-all"
    every, _ = options_in(path, "--help-all")
    assert every == common | rare


def test_commands_with_the_settings_of_a_run_an_agent_a_relay_a_demo_or_a_fleet_have_rare_options():
    names = {" ".join(path) for path in WITH_RARE_OPTIONS}
    assert names >= {"fedpatch run", "fedpatch doctor", "fedpatch demo", "fedpatch simulate", "fedpatch simulate fleet"}
    assert names >= {"fedpatch-agent run", "fedpatch-agent conditions", "fedpatch-relay run"}


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in WITH_RARE_OPTIONS], ids=" ".join)
def test_command_without_rare_options_has_no_help_all(path):
    assert "--help-all" not in {name for one in FOUND[path].params for name in one.opts}


@pytest.mark.parametrize("cls", COMMANDS_OF_SETTINGS)
def test_common_settings_are_settings_with_an_option(cls):
    assert cls.common <= {one.name for one in settings_of(cls) if not one.rules.secret}


@pytest.mark.medium
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_prints_the_version(path):
    program, *names = path
    result = CliRunner().invoke(PROGRAMS[program], [*names, "--version"], prog_name=program)
    assert (result.exit_code, result.stdout) == (0, f"{program} {__version__}\n")


@pytest.mark.medium
@pytest.mark.parametrize("line", re.findall(r"^    (fedpatch(?:-agent)? .*)$", PAGE, re.MULTILINE))
def test_the_options_of_every_documented_example_exist(line):
    """An example of the page uses only options that its command has."""
    words = line.partition(" > ")[0].partition(" | ")[0].split()
    command: Any = get_command(PROGRAMS[words[0]])
    for word in words[1:]:
        command = children(command).get(word, command)
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("fedpatch unit", "/etc/fedpatch/coordinator.toml"),
        ("fedpatch-agent unit", "/etc/fedpatch/agent.toml"),
        ("fedpatch-relay unit", "/etc/fedpatch/relay.toml"),
        ("fedpatch-agent enrol", "agent.toml"),
    ],
)
def test_the_page_names_the_settings_file_that_a_command_writes_or_prints(command, file):
    section = PAGE.partition(f"## `{command}`\n")[2].partition("\n## ")[0]
    assert f"- `--config` (`{file}`): Settings" in section


def test_the_page_names_all_settings_with_which_a_run_is_resumed_although_they_differ():
    section = PAGE.partition("## `fedpatch run`\n")[2].partition("\n## ")[0]
    connection_and_paths = {one.name for one in fields(BrokerSettings)} | {"state_dir", "state", "ca_dir"}
    named = set(re.findall(r"(?<!not )--[a-z-]+", section.partition("which may differ:")[2].partition(".")[0]))
    assert named == {f"--{name.replace('_', '-')}" for name in MAY_CHANGE - connection_and_paths}


def test_the_commands_of_the_simulator_are_among_them():
    assert {("fedpatch", "simulate", *more) for more in ((), ("compare",), ("fleet",))} <= set(COMMANDS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_has_a_heading_in_the_help(program):
    """A heading without commands, or with one that does not exist, is not shown."""
    command = get_command(PROGRAMS[program])
    assert all(child.rich_help_panel for child in children(command).values())
    shown = CliRunner().invoke(PROGRAMS[program], ["--help"], env={"COLUMNS": "100", "TERM": "dumb"}).stdout
    assert "─ Commands ─" not in shown
    assert re.search(r"─ (Set a (fleet|device) up ─.*\bunit|Run a site ─.*\bstatus)\b", shown, re.DOTALL)
