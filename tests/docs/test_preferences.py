"""docs/reference/preferences.md: its agent.toml has every preference and loads, and it explains each value of on_loss."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from fedpatch.device_agent.policy.settings import ON_LOSS, PreferenceSettings
from fedpatch.device_agent.policy.unmet_preferences import Preferences
from fedpatch.device_agent.policy.work_on_loss import OnLoss
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.load import load
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "preferences.md").read_text("utf-8")
EXAMPLE = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| `.*$", PAGE, re.MULTILINE)]
KEYS = {item.name for item in fields(PreferenceSettings)}


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


def test_page_explains_each_value_of_on_loss():
    documented = [row[0].strip("`") for row in ROWS if len(row) == 2]
    assert documented == list(ON_LOSS) == list(OnLoss)
