"""Each name of the API on docs/how-to/python.md exists, with the attributes and methods that the page gives it."""

from __future__ import annotations

import dataclasses
import re

import fedpatch
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "python.md").read_text("utf-8")
CODE = set(re.findall(r"`([^`\n]+)`", PAGE)) | set(re.findall(r"^    (.+)$", PAGE, flags=re.MULTILINE))


def _has(owner: object, name: str) -> bool:
    fields = {one.name for one in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    return hasattr(owner, name) or name in fields


def test_every_class_of_the_page_has_the_attributes_that_the_page_names():
    named = {pair for code in CODE for pair in re.findall(r"\b([A-Z]\w+)(?:\([^)]*\))?\.(\w+)", code)}
    assert {("Outcome", "complete"), ("RunSummary", "stopped_because"), ("Client", "report")} <= named
    public = {name for name, _ in named if name in fedpatch.__all__}
    assert public == {name for name, _ in named}
    assert [f"{owner}.{name}" for owner, name in sorted(named) if not _has(getattr(fedpatch, owner), name)] == []


def test_every_function_of_the_page_is_public():
    named = {name for code in CODE for name in re.findall(r"\bfedpatch\.([A-Za-z]\w*)", code)} - {"toml"}
    assert {"run", "simulate", "start_run"} <= named
    assert named <= {*fedpatch.__all__}


def test_figures_of_results_on_the_page_are_attributes_of_their_class():
    from fedpatch.coordinator.api.running import run
    from fedpatch.simulator.experiment.user_study import simulate

    results = {"outcome": simulate, "result": run}
    owners = {"outcome": fedpatch.Outcome, "result": fedpatch.RunSummary}
    for name in results:
        used = {attribute for code in CODE for attribute in re.findall(rf"\b{name}\.(\w+)", code)}
        assert used and [one for one in used if not _has(owners[name], one)] == [], name
