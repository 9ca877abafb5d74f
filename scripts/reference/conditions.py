"""The page conditions.md: the facts about a device from their records; the rest is its template."""

from __future__ import annotations

from fedpatch.device_agent.sensors.device_facts import FACTS
from scripts.reference.markdown import render, table


def page() -> str:
    """Return the page."""
    rows = [(one.label, one.sources) for one in FACTS.values()]
    return render("conditions.md", facts=table(("fact", "sources, in order"), rows))
