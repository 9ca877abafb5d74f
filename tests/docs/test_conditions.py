"""docs/reference/conditions.md: its UPS settings are valid, and its program works."""

from __future__ import annotations

import re
import textwrap

import pytest

from fedpatch.device_agent.sensors import commands
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.ups import ask_ups, parse_ups
from fedpatch.device_agent.sensors.ups_command import UpsCommand
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "conditions.md").read_text("utf-8")
PATIENCE_S = 90.0


def test_every_way_to_name_a_ups_can_be_written():
    table = PAGE.split("| `ups` | asks |")[1].split("\n\n")[0].splitlines()[2:]
    words = [word for row in table for word in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(words) == 5
    for word in words:
        assert parse_ups(word.replace("PORT", "8423")) is not None


@pytest.mark.parametrize(("level", "external"), [("hi", True), ("lo", False), ("--", None)])
def test_the_program_of_the_page_works(tmp_path, monkeypatch, level, external):
    """The program runs as printed on the page, with a pinctrl that prints the level of the pin."""
    script = PAGE.split("mains fail:\n\n")[1].split("\n\nand in agent.toml")[0]
    program, pinctrl = tmp_path / "my-hat", tmp_path / "pinctrl"
    program.write_text(textwrap.dedent(script) + "\n")
    pinctrl.write_text(f"#!/bin/sh\n[ \"$1 $2\" = 'get 6' ] && echo ' 6: ip    pu | {level} // GPIO6 = input'\n")
    for one in (program, pinctrl):
        one.chmod(0o755)
    monkeypatch.setattr(commands, "LIMIT_S", PATIENCE_S)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    named = parse_ups("command:/usr/local/bin/my-hat")
    assert named == UpsCommand(("/usr/local/bin/my-hat",)) and f'ups = "command:{named.argv[0]}"' in PAGE
    assert ask_ups(UpsCommand((str(program),)), SysFs(tmp_path)).external.value is external
