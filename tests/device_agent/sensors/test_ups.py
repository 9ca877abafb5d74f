"""The owner's setting for a UPS, and the answers of each kind of UPS."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.nut import Nut, read_upsc
from fedpatch.device_agent.sensors.pisugar import PISUGAR_QUESTIONS, PiSugar, read_pisugar
from fedpatch.device_agent.sensors.power_facts import Power
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.device_agent.sensors.ups import ask_ups, parse_ups
from fedpatch.device_agent.sensors.ups_command import UpsCommand, read_command
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.errors import UsageError
from tests.device_agent.sensors.pisugar_server import PiSugarServer
from tests.device_agent.sensors.scenes import Scene

ANYTHING = st.binary(max_size=200).map(lambda some: some.decode("utf-8", "replace"))


def _ask(text: str, root: Path) -> Power:
    ups = parse_ups(text)
    assert ups is not None
    return ask_ups(ups, SysFs(root))


@pytest.mark.parametrize(
    ("text", "ups"),
    [
        ("", None),
        ("nut:ups@localhost", Nut("ups@localhost")),
        ("nut:eaton-5e@10.0.0.2:3493", Nut("eaton-5e@10.0.0.2:3493")),
        ("pisugar", PiSugar(host="127.0.0.1", port=8423)),
        ("pisugar:/run/pisugar.sock", PiSugar(socket="/run/pisugar.sock")),
        ("pisugar:127.0.0.1:8423", PiSugar(host="127.0.0.1", port=8423)),
        ("pisugar:raspberrypi.local", PiSugar(host="raspberrypi.local", port=8423)),
        ("pisugar:[::1]:99", PiSugar(host="::1", port=99)),
        ("command:/opt/hat.py --bus 1 'a b'", UpsCommand(("/opt/hat.py", "--bus", "1", "a b"))),
    ],
)
def test_ups_settings_are_parsed(text, ups):
    assert parse_ups(text) == ups


def test_no_default_lies_in_a_tmp_that_a_service_does_not_share():
    """The service has a private /tmp (PrivateTmp=yes): files that others put into /tmp are not there."""
    defaults = [str(field.default) for field in dataclasses.fields(AgentSettings)]
    paths = [path for path in (*defaults, str(parse_ups("pisugar"))) if "/tmp" in path]
    assert paths == [] and len(defaults) > 20


@pytest.mark.parametrize(
    "text",
    [
        "nut", "nut:", "nut:ups", "nut:-h@x", "nut:a b@c", "pisugar:", "pisugar:host:0", "pisugar:host:99999",
        "pisugar:ho st", "command:", "command:hat.py", "command:/opt/hat.py 'open", "command:/a\0b", "apc", ":",
    ],
)  # fmt: skip
def test_unknown_ups_is_refused_with_a_remedy(text):
    with pytest.raises(UsageError, match=r"write|quote|leave"):
        parse_ups(text)


@given(ANYTHING, st.sampled_from(["", "nut:", "pisugar:", "command:", "command:/"]))
def test_any_text_names_a_ups_or_is_refused(text, kind):
    try:
        parse_ups(kind + text)
    except UsageError as error:
        assert str(error)


@given(
    ANYTHING
    | st.lists(st.sampled_from(["ups.status: OL", "battery.charge: 9", "power=on", "battery=x%"])).map("\n".join)
)
def test_any_answer_makes_facts(text):
    answers = dict.fromkeys(PISUGAR_QUESTIONS, text)
    for power in (read_upsc(text, "upsc"), read_command(text, "hat"), read_pisugar(answers, "PiSugar")):
        assert power.external.value in (True, False, None) and power.external.source
        assert power.battery_percent.value is None or 0.0 <= power.battery_percent.value <= 100.0


@pytest.mark.parametrize(
    ("status", "external"),
    [("OL", True), ("OL CHRG", True), ("OB LB", False), ("OL OB", False), ("ALARM OB DISCHRG", False), ("OFF", None)],
)
def test_the_words_of_nut(status, external):
    """OB takes precedence: external power is not assumed from a UPS that reports both."""
    assert read_upsc(f"ups.status: {status}\nbattery.charge: 100\n", "upsc").external.value is external


@pytest.mark.parametrize(
    ("answers", "external", "percent"),
    [
        ({"battery_power_plugged": "true", "battery_charging": "false", "battery": "99.6"}, True, 99.6),
        ({"battery_power_plugged": "false", "battery_charging": "false", "battery": "12"}, False, 12.0),
        ({"battery_charging": "true", "battery": "12"}, True, 12.0),
        ({"battery_charging": "false"}, False, None),
        ({"battery": "-1"}, None, None),
        ({}, None, None),
    ],
)
def test_the_boards_of_pisugar(tmp_path, answers, external, percent):
    """If a board does not report whether it is plugged in, its charging state decides."""
    with PiSugarServer(**answers) as board:
        power = _ask(board.ups, tmp_path)
    assert (power.external.value, power.battery_percent.value) == (external, percent)


@pytest.mark.parametrize(
    ("printed", "external", "percent"),
    [
        ("power=on\nbattery=55\n", True, 55.0),
        ("POWER = off\nbattery = 54.5 %\nvolts=3.7\n", False, 54.5),
        ("power=on\n", True, None),
        ("battery=7\n", None, 7.0),
        ("power=maybe\nbattery=lots\n", None, None),
    ],
)
def test_a_program_of_the_owner(tmp_path, printed, external, percent):
    program = tmp_path / "hat.py"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint({printed!r}, end=sys.argv[1])\n")
    program.chmod(0o755)
    power = _ask(f"command:{program} ''", tmp_path)
    assert (power.external.value, power.battery_percent.value) == (external, percent)


def _is_silent(ups: str, scene: Scene, why: str) -> None:
    facts = scene.observer(ups=ups).observe()
    assert (facts.external_power.value, facts.battery_percent.value) == (None, None)
    assert why in facts.external_power.source and why in facts.battery_percent.source


def test_a_ups_that_cannot_be_asked_leaves_power_unknown(tmp_path):
    scene = Scene(tmp_path)
    _is_silent("nut:ups@localhost", scene, "upsc is not installed (apt install nut-client)")
    scene.program("upsc", "echo 'Error: Data stale'; exit 1")
    _is_silent("nut:ups@localhost", scene, "upsc ended with exit code 1")
    _is_silent("pisugar:/does/not/exist", scene, "No such file or directory; does it run?")
    _is_silent("command:/does/not/exist", scene, "exist cannot be run")


def test_closed_pisugar_connection_gives_an_unknown_fact(tmp_path, socket_folder):
    with PiSugarServer(socket_folder / "s") as board:
        place = board.ups
    with pytest.raises(FactUnavailable, match="does it run"):
        _ask(place, tmp_path)
