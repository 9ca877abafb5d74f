"""Tables of the results page on cells that differ from the paper's: the value of each column for given results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.peers.published_code import PublishedCell
from fedpatch.simulator.paper.comparison import Comparison, compare
from fedpatch.simulator.paper.experiments import TUNING_SEED, Cell, rate_cells, select_cells, study_of
from fedpatch.simulator.paper.results import Results
from scripts.reference import differences
from tests.simulator.fake_simulation import result

(NONE,) = select_cells("table2", "mnist/fedadam/none/W200/C1.0")  # 69 rounds in the paper
(ALL,) = select_cells("table2", "mnist/fedavg/all/W400/C1.0")  # 68 rounds


@pytest.fixture
def store(tmp_path: Path) -> Results:
    return Results(tmp_path)


def compared(cell: Cell, rounds: Sequence[int | None]) -> Comparison:
    return Comparison(cell, tuple(result(cell, seed, one) for seed, one in enumerate(rounds)))


@pytest.mark.parametrize(
    ("rounds", "expected"), [((61, 335), True), ((70, 335), False), ((50, 60), False), ((61, None), True)]
)
def test_in_range_holds_where_the_papers_mean_lies_between_two_seeds(rounds, expected):
    assert differences.in_range(compared(NONE, rounds)) is expected


@pytest.mark.parametrize(("rounds", "expected"), [((100,), True), ((50,), False), ((50, None), True)])
def test_slower_holds_for_more_rounds_and_for_a_target_that_is_not_reached(rounds, expected):
    assert differences.slower(compared(NONE, rounds)) is expected


def test_accuracy_at_the_papers_round_is_the_last_one_of_a_run_that_ended_before():
    late, early = compared(NONE, (100,)), compared(NONE, (50,))
    assert differences.accuracy_at_paper(late) == late.results[0].curve[69]
    assert differences.accuracy_at_paper(early) == early.results[0].curve[50]


@pytest.mark.parametrize(
    ("rounds", "shown", "row"),
    [
        (64, "64", "are those of another split of the test data"),
        (30, "30\\*", "lie between those of two splits"),
        (120, "120\\*", "**open**"),
    ],
)
def test_a_split_covers_a_cell_when_it_agrees_or_the_papers_rounds_lie_between_two_splits(store, rounds, shown, row):
    store.write(ALL, 0, result(ALL, 0, 148))
    (aligned,) = select_cells("aligned", ALL.short_name)
    assert "| **open** | 1 | fedavg all W400 C1.0 |" in differences.explained(store)["explained"]
    store.write(aligned, 0, result(aligned, 0, rounds))
    words = differences.explained(store)
    assert f"| {row} | 1 | fedavg all W400 C1.0 |" in words["explained"]
    assert (words["differing_count"], words["explained_count"]) == ("1", "0" if row == "**open**" else "all")
    assert f"| fedavg all W400 C1.0 | 148\\* | | {shown} | 68 |" in differences.splits_table(store)


@pytest.mark.parametrize(
    ("rounds", "curve_rounds", "differs"),
    [(148, 148, True), (None, 100, True), (None, 80, False), (70, 70, False), (40, 40, False)],
)
def test_published_code_differs_alike_where_it_is_as_far_from_the_paper_on_the_same_side(
    store, rounds, curve_rounds, differs
):
    store.write(ALL, 0, result(ALL, 0, None))
    other = PublishedCell(ALL.name, 0, rounds, [0.5] * (curve_rounds + 1), 1.0)
    folder = store.folder / "published"
    folder.mkdir()
    (folder / "mnist.json").write_text(json.dumps({"cells": [asdict(other)]}))
    (one,) = compare(store, [ALL])
    assert differences.published_code_differs(store, one) is differs
    assert differences.explained(store)["published_count"] == "1"
    text = f">{curve_rounds}" if rounds is None else str(rounds)
    assert f"| {text} |" in differences.differing_table(store)


def test_rates_like_the_papers_are_those_of_the_nearest_trial_within_the_limits(store):
    trials = rate_cells(replace(NONE, where="tuned"))
    for trial, rounds in zip(trials[:3], (20, 75, 70), strict=True):
        store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, rounds))
    found = differences.rates_like_the_papers(store, NONE)
    assert found is not None
    assert found[0].rates == trials[2].rates
    assert "| fedadam none W200 C1.0 | 0.03 | 20 | 75 | 70 | - | 69 |" in differences.grids(store)


def test_rates_like_the_papers_on_the_even_split_name_the_split(store):
    (trial,) = select_cells("tuning-even", "mnist/fedadam/all/W400/C1.0/rate0.1-server0.01")
    cell = replace(ALL, strategy="fedadam", paper=77)
    store.write(cell, 0, result(cell, 0, None))
    store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, 70))
    assert study_of(trial, TUNING_SEED).data.startswith("even:")
    assert "| even, 0.1, server 0.01: 70 |" in differences.differing_table(store)


def test_a_far_trial_is_not_like_the_papers(store):
    trial = rate_cells(replace(NONE, where="tuned"))[0]
    store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, 20))
    assert differences.rates_like_the_papers(store, NONE) is None
    (cell,) = compare(store, [trial])
    assert cell.within is False
