"""Order of writes and syncs in the recorded stories: a short form of the tests of power cuts, without a disk that is built."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.power_cut.disk import Output, Record, Step, Sync
from tests.power_cut.recording import recorded_story
from tests.power_cut.write_order import order_problems
from tests.support.paths import ROOT

STORIES = ("stores", "device", "coordinator")

pytestmark = pytest.mark.medium


@dataclass(frozen=True)
class Recorded:
    """The record of a story, and its syncs by the line of code that called for them."""

    record: Record
    syncs: dict[str, list[Sync]]


def _by_site(record: Record) -> Recorded:
    syncs: dict[str, list[Sync]] = defaultdict(list)
    steps: list[Step] = []
    site = ""
    for step in record.steps:
        if isinstance(step.what, Output) and (mark := json.loads(step.what.data))["what"] == "sync":
            site = mark["site"]
            continue
        if isinstance(step.what, Sync) and site:
            syncs[site].append(step.what)
            site = ""
        steps.append(step)
    return Recorded(replace(record, steps=steps), syncs)


def _without(recorded: Recorded, site: str) -> Record:
    """Return the record without the syncs of a site; equal syncs of other sites stay."""
    left_out = {id(sync) for sync in recorded.syncs[site]}
    return recorded.record.without(lambda sync: id(sync) in left_out)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """The recordings of all stories by name."""
    return {name: _by_site(recorded_story(name, tmp_path_factory.mktemp(name), "sites")) for name in STORIES}


@pytest.mark.parametrize("name", STORIES)
def test_acknowledged_changes_are_durable_first(recorded, name):
    assert list(order_problems(recorded[name].record)) == []


def test_removal_of_any_sync_call_breaks_the_order(recorded):
    """So each sync is needed, and the check above detects its removal."""
    sites = {site for one in recorded.values() for site in one.syncs}
    assert len(sites) > 15
    unnoticed = {
        site
        for site in sites
        if not any(list(order_problems(_without(one, site))) for one in recorded.values() if site in one.syncs)
    }
    assert unnoticed == set()


def test_removal_of_sqlite_syncs_breaks_the_order(recorded: dict[str, Recorded]):
    """As with PRAGMA synchronous=OFF."""
    careless = recorded["coordinator"].record.without(lambda sync: ".sqlite3" in sync.path)
    assert next(order_problems(careless), None)


@pytest.mark.parametrize("name", STORIES)
def test_sync_after_the_rename_breaks_the_order(recorded, name):
    assert next(order_problems(recorded[name].record.with_late_syncs()), None)


def test_every_line_that_syncs_is_played(recorded):
    """A new store that calls `os.fsync` or `sync_directory` needs a part in a story."""
    played = {tuple(site.split(":")[::2]) for one in recorded.values() for site in one.syncs}
    assert set(_lines_that_sync()) - played == set()


def _lines_that_sync() -> Iterator[tuple[str, str]]:
    for folder in ("coordinator", "device_agent", "shared", "relay"):
        for path in (ROOT / folder).rglob("*.py"):
            for function in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(function, ast.FunctionDef) and function.name != "sync_directory":
                    for node in ast.walk(function):
                        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.fsync", "sync_directory"):
                            yield path.name, str(node.lineno)
