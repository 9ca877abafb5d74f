"""Each name of the API on docs/how-to/python.md exists, with the attributes and methods that the page gives it.

Other pages with Python: each dotted name of a module, function or class exists.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from contextlib import suppress

import pytest

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


def _exists(name: str) -> bool:
    module, _, rest = name.partition(".")
    found: object = importlib.import_module(module)
    for part in rest.split("."):
        module = f"{module}.{part}"
        if not hasattr(found, part):
            with suppress(ImportError):
                importlib.import_module(module)
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", ["bring-your-task", "own-strategy", "python"])
def test_every_dotted_name_of_a_page_of_python_exists(page):
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text("utf-8")
    named = set(re.findall(r"\bfedpatch(?:\.[A-Za-z_]\w*)+(?![\w-]|\.\w)", text)) - {"fedpatch.toml"}
    # Groups of entry points have the form of names.
    named -= {"fedpatch.tasks", "fedpatch.strategies"}
    assert named and [name for name in sorted(named) if not _exists(name)] == []
