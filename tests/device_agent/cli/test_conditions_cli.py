"""`fedpatch-agent conditions`: the facts of a device that its owner sees, and its answer to work."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.device_agent.state.pause_file import write_pause
from tests.device_agent.sensors.scenes import BATTERY, Scene
from tests.support.programs import Ended, Program


@pytest.fixture
def agent(agent: Program, tmp_path: Path) -> Callable[..., Ended]:
    """The command on a laptop that runs on its battery, with a broker on the same machine."""
    scene = Scene(tmp_path)
    scene.supply("BAT0", BATTERY)
    scene.card("lo", kind="772")
    where = ("--conditions-root", tmp_path, "--state-dir", scene.state_dir, "--broker", "mqtt://localhost")
    return lambda *options: agent("conditions", "--data", "shard:0/2", *where, *options)


def test_conditions_prints_facts_with_their_sources(agent):
    ended = agent("--no-charging")
    assert ended.code == 0, ended.err
    *facts, empty, private, answer = ended.out.splitlines()
    assert private == "private: at least affine (the default)"
    assert (empty, answer, len(facts)) == ("", "it would accept work now", len(fields(Facts)))
    printed = dict(zip((one.name for one in fields(Facts)), facts, strict=True))
    assert printed["battery_percent"].split() == [
        "battery",
        "percent",
        "71",
        "/sys/class/power_supply/BAT0:",
        "capacity",
    ]
    assert printed["external_power"].split()[:3] == ["external", "power", "no"]
    assert printed["temperature_c"].split()[:3] == ["temperature", "c", "unknown"]
    assert printed["metered"].split()[:2] == ["metered", "no"] and printed["metered"].endswith(" (assumed)")
    assert printed["link"].split() == ["link", "loopback", "/sys/class/net/lo"]


def test_conditions_prints_each_objection_to_work(agent):
    lines = ["it would not accept work now:", "  it runs on its battery"]
    assert agent().out.splitlines()[-2:] == lines
    lines = ["it would accept work now", "  independent of its preferences: it runs on its battery"]
    assert agent("--admission", "always").out.splitlines()[-2:] == lines


def test_conditions_names_the_admission_that_declines_whatever_the_preferences_are(agent, tmp_path):
    lines = ["it would not accept work now:", "  its owner set admission to never"]
    assert agent("--admission", "never").out.splitlines()[-2:] == lines
    (tmp_path / "admission").write_text("decline: on holiday\n")
    lines[1] = "  on holiday"
    assert agent("--admission", f"file:{tmp_path / 'admission'}").out.splitlines()[-2:] == lines


def test_pause_is_the_only_reason_with_another_admission_than_preferences(agent, tmp_path):
    write_pause(tmp_path / "var" / "lib" / "agent")
    lines = ["it would not accept work now:", "  its owner has paused it"]
    assert agent("--admission", "always").out.splitlines()[-2:] == lines
    assert set(agent().out.splitlines()[-2:]) == {lines[1], "  it runs on its battery"}


def test_conditions_json_holds_the_same_facts(agent):
    printed = json.loads(agent("--json").out)
    assert (printed["would_accept"], [one["condition"] for one in printed["missed"]]) == (False, ["not_charging"])
    assert list(printed["facts"]) == [one.name for one in fields(Facts)]
    assert printed["facts"]["battery_percent"]["value"] == 71.0
    assert printed["facts"]["temperature_c"] | {"source": ""} == {"value": None, "source": "", "confidence": "unknown"}


@pytest.mark.parametrize(("options", "accepts"), [(["--dp-required"], False), ([], True)])
def test_conditions_names_a_damaged_account_of_privacy_where_privacy_is_required(agent, tmp_path, options, accepts):
    (tmp_path / "var/lib/agent/privacy-ledger").write_bytes(b"?")
    printed = json.loads(agent("--json", "--no-charging", *options).out)
    assert printed["would_accept"] is accepts
    assert ("account of privacy" in printed["why"]) is not accepts


def test_conditions_prints_facts_where_the_record_of_what_stayed_private_cannot_be_read(agent, monkeypatch):
    def refuse(directory: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(directory))

    monkeypatch.setattr("fedpatch.device_agent.policy.floor_status.tasks_with_records", refuse)
    ended = agent("--no-charging")
    assert ended.code == 0 and "external power" in ended.out
    assert "it would not accept work now:" in ended.out
