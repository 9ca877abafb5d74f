"""docs/reference/preferences.md agrees with the settings, the rules and the wire's conditions; its agent.toml loads."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from fedpatch.device_agent.policy.hysteresis import OnLoss
from fedpatch.device_agent.policy.preference_rules import RULES
from fedpatch.device_agent.policy.preferences import Preferences
from fedpatch.device_agent.policy.settings import ALLOWED_IF_UNKNOWN, ON_LOSS, PreferenceSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.load import load
from fedpatch.shared.wire.reason_codes import Condition
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "preferences.md").read_text("utf-8")
EXAMPLE = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| `.*$", PAGE, re.MULTILINE)]
KEYS = {item.name for item in fields(PreferenceSettings)}
HEADING = 5  # cells of the table of preferences


@pytest.fixture
def example(tmp_path) -> AgentSettings:
    file = tmp_path / "agent.toml"
    file.write_text(EXAMPLE, "utf-8")
    return load(AgentSettings, file=file, environ={}, flags={})


def test_the_example_names_every_preference(example):
    assert set(re.findall(r"^(\w+) =", EXAMPLE, re.MULTILINE)) >= KEYS
    assert example.ssids == ("home", "lab")
    preferences = Preferences.of(example)
    assert len(preferences.quiet_hours.spans) == 3
    assert preferences.allow_unknown["unmetered"] and not preferences.allow_unknown["max_temperature"]


def test_every_preference_is_explained_in_the_table():
    named = {row[0].strip("`"): row[2].strip("`") for row in ROWS if len(row) == HEADING}
    assert named.keys() == KEYS - {
        "unknown",
        *(name for name in KEYS if f"{name} = " in EXAMPLE.partition("# When some")[2]),
    }
    assert {*named.values(), "paused"} == set(Condition)
    assert {name: rule.condition for name, rule in RULES.items()}.items() <= named.items()


def test_table_has_the_meaning_of_each_unknown_fact():
    documented = {row[0].strip("`"): row[3] == "allow" for row in ROWS if len(row) == HEADING and row[3]}
    assert documented == ALLOWED_IF_UNKNOWN


def test_table_has_the_retry_time_of_each_preference():
    documented = {row[0].strip("`"): row[4] for row in ROWS if len(row) == HEADING}
    assert {name: f"{rule.retry_after_s / 60:g} min" for name, rule in RULES.items()}.items() <= documented.items()


def test_page_explains_each_value_of_on_loss():
    documented = [row[0].strip("`") for row in ROWS if len(row) == 2]
    assert documented == list(ON_LOSS) == list(OnLoss)
