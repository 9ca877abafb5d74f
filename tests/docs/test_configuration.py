"""docs/reference/configuration.md says what the settings classes say."""

from __future__ import annotations

import os

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.fields import settings_of
from fedpatch.simulator.fleet.settings import FleetTerms
from tests.docs.settings_page import reference
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "configuration.md"
CLASSES = {
    "Coordinator: `fedpatch run`": RunSettings,
    "Device: `fedpatch-agent run`": AgentSettings,
    "Demo: `fedpatch demo`": DemoSettings,
    "Simulated fleet: `fedpatch simulate fleet`": FleetTerms,
}
MARK = "<!-- From here on"


def test_the_reference_page_agrees_with_the_settings():
    """Every key, default, range and help text; with UPDATE_DOCS set, the page is written anew."""
    text = PAGE.read_text("utf-8")
    mark = next(line for line in text.splitlines() if line.startswith(MARK))
    expected = f"{text.partition(mark)[0]}{mark}\n\n{reference(CLASSES)}"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(expected, "utf-8")
    assert PAGE.read_text("utf-8") == expected


def test_the_reference_has_a_row_for_every_setting():
    """A setting that nobody can look up does not exist."""
    for cls in CLASSES.values():
        page = reference({"x": cls})
        assert all(f"| `{one.name}` |" in page for one in settings_of(cls))
