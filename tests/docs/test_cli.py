"""docs/reference/cli.md and `--help` against the commands that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

import fedpatch.cli
import fedpatch.device_agent.cli.main
from fedpatch.shared import __version__
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
SETTINGS = (ROOT / "docs" / "reference" / "configuration.md").read_text("utf-8")
PROGRAMS = {"fedpatch": fedpatch.cli.app, "fedpatch-agent": fedpatch.device_agent.cli.main.app}


def _children(command: Any) -> dict[str, Any]:
    """Also those that are found as entry points."""
    if not hasattr(command, "list_commands"):
        return {}
    context = typer.Context(command)
    return {name: command.get_command(context, name) for name in command.list_commands(context)}


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, child in _children(command).items():
        yield (*path, name)
        yield from _commands(child, (*path, name))


COMMANDS = [path for name, app in PROGRAMS.items() for path in _commands(get_command(app), (name,))]


def _section(title: str) -> str:
    found = re.search(rf"^## `{re.escape(title)}`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_is_documented_with_an_example(path):
    """It has a section of its own, with a line that calls it."""
    assert re.search(rf"^    {' '.join(path)}(\s|$)", _section(" ".join(path)), re.MULTILINE)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_documented(path):
    """As a setting, in the command's section, or with what all commands keep to."""
    program, *names = path
    command: Any = get_command(PROGRAMS[program])
    for name in names:
        command = _children(command)[name]
    words = PAGE.partition("\n## ")[0] + _section(" ".join(path))
    for parameter in command.params:
        option = parameter.opts[0].removeprefix("--")
        setting = f"| `{option.replace('-', '_')}` |" in SETTINGS
        hidden = getattr(parameter, "hidden", False) or not parameter.opts[0].startswith("--")
        assert hidden or setting or re.search(rf"--{option}\b(?!-)", words), parameter.opts


def test_no_command_is_documented_that_does_not_exist():
    """Every section of a command names one."""
    assert set(re.findall(r"^## `(.*)`$", PAGE, re.MULTILINE)) == {" ".join(path) for path in COMMANDS}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(path):
    """`--help` ends with a line that can be copied."""
    program, *names = path
    result = CliRunner().invoke(PROGRAMS[program], [*names, "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    assert result.exit_code == 0
    assert f"Example: {' '.join(path)}" in result.stdout


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_tells_the_version(path):
    """Of the whole program, wherever `--version` stands."""
    program, *names = path
    result = CliRunner().invoke(PROGRAMS[program], [*names, "--version"], prog_name=program)
    assert (result.exit_code, result.stdout) == (0, f"{program} {__version__}\n")


@pytest.mark.parametrize("line", re.findall(r"^    (fedpatch(?:-agent)? .*)$", PAGE, re.MULTILINE))
def test_the_options_of_every_documented_example_exist(line):
    """An example of the page uses only options that its command has."""
    words = line.partition(" > ")[0].partition(" | ")[0].split()
    command: Any = get_command(PROGRAMS[words[0]])
    for word in words[1:]:
        command = _children(command).get(word, command)
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_commands_of_the_simulator_are_among_them():
    """`fedpatch` finds them as entry points."""
    assert {("fedpatch", "simulate", *more) for more in ((), ("paper",), ("fleet",))} <= set(COMMANDS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_help_lists_every_command_under_a_heading_that_says_what_it_is_for(program):
    """Nobody reads eighteen commands in one row; a heading without commands, or with one that is gone, is none."""
    command = get_command(PROGRAMS[program])
    assert all(child.rich_help_panel for child in _children(command).values())
    shown = CliRunner().invoke(PROGRAMS[program], ["--help"], env={"COLUMNS": "100", "TERM": "dumb"}).stdout
    assert "─ Commands ─" not in shown
    assert re.search(r"─ Set a (fleet|device) up ─.*\bunit\b", shown, re.DOTALL)
