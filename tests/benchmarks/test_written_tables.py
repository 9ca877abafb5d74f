"""The tables in results/benchmarks equal the documents beside them."""

from __future__ import annotations

import re

import pytest

from benchmarks.support.documents import read_document
from benchmarks.support.programs import ROOT
from benchmarks.support.write_tables import RESULTS, TABLES, tables_text

PAGE = ROOT / "docs" / "explanation" / "performance.md"


@pytest.mark.parametrize("name", TABLES)
def test_committed_tables_are_those_of_the_document(name):
    """`python -m benchmarks.support.write_tables` would change nothing."""
    assert (RESULTS / f"{name}.md").read_text("utf-8") == tables_text(name)


@pytest.mark.parametrize("name", ["masked-cost", "masked-round-time"])
def test_page_has_the_tables_of_masked_groups(name):
    """The page has each row of results/benchmarks/NAME.md."""
    rows = [line for line in tables_text(name).splitlines() if line.startswith("|")]
    assert "\n".join(rows) in PAGE.read_text("utf-8")


@pytest.mark.parametrize(("task", "model"), [("mnist", "2NN, 800 kB"), ("cifar10", "CNN, 4.8 MB")])
def test_page_gives_the_ratios_of_the_coordination_document(task, model):
    """The medians, rounded."""
    for measured in read_document(RESULTS / "coordination.json", "coordination")["measured"]:
        if measured["task"] == task:
            row = re.search(rf"^\| {model} \| {measured['devices']} \| (.*) \|$", PAGE.read_text("utf-8"), re.M)
            assert row is not None
            shown = [float(cell.split()[0]) for cell in row[1].split(" | ") if cell != "-"]
            ratios = [
                one["wall_ratio_to_bare"]["median"]
                for one in measured["contests"]
                if not one["name"].startswith("bare")
            ]
            assert shown == pytest.approx(ratios, abs=0.06, rel=0.005)
