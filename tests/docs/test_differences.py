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
from scripts.reference import differences, results
from tests.simulator.fake_simulation import result

(NONE,) = select_cells("table2", "mnist/fedadam/none/W200/C1.0")  # 69 rounds in the paper
(ALL,) = select_cells("table2", "mnist/fedavg/all/W400/C1.0")  # 68 rounds


@pytest.fixture
def store(tmp_path: Path) -> Results:
    return Results(tmp_path)


def compared(cell: Cell, rounds: Sequence[int | None]) -> Comparison:
    return Comparison(cell, tuple(result(cell, seed, one) for seed, one in enumerate(rounds)))


def write_published(store: Results, cells: Sequence[PublishedCell]) -> None:
    folder = store.folder / "published"
    folder.mkdir()
    (folder / "mnist.json").write_text(json.dumps({"cells": [asdict(one) for one in cells]}))


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
    ("here", "other", "shown", "row"),
    [
        (148, 64, "64", "another split of the test data"),
        (148, 30, "30\\*", "two splits: the paper's rounds lie between theirs"),
        (None, 30, "30\\*", "two splits: one takes fewer rounds, the other never reaches the target"),
        (148, 120, "120\\*", "**open**"),
    ],
)
def test_a_split_counts_where_it_agrees_or_the_papers_rounds_lie_between_two_splits(store, here, other, shown, row):
    store.write(ALL, 0, result(ALL, 0, here))
    (aligned,) = select_cells("aligned", ALL.short_name)
    assert "| **open** | 1 | fedavg all W400 C1.0 |" in differences.explained(store)["explained"]
    store.write(aligned, 0, result(aligned, 0, other))
    words = differences.explained(store)
    assert f"| {row} | 1 | fedavg all W400 C1.0 |" in words["explained"]
    assert (words["differing_count"], words["explained_count"]) == ("1", "0" if row == "**open**" else "1")
    assert f"| fedavg all W400 C1.0 | {here or 'X'}\\* | | {shown} | 68 |" in differences.splits_table(store)


def test_agreement_on_even_compares_the_seeds_that_both_splits_have(store):
    (even,) = select_cells("even", ALL.short_name)
    for seed, rounds in enumerate((68, None)):
        store.write(ALL, seed, result(ALL, seed, rounds))
    store.write(even, 0, result(even, 0, 30))
    assert differences.agreement_on_even(store) == {"even_cells": "1", "even_agree": "0", "even_shard_agree": "1"}


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ([], "no cell"),
        ([[0.1, 0.95, 0.97]], "no cell"),
        ([[0.1, 0.92, 0.95, 0.1], [0.1, 0.95]], "1 of 2 cells (round 3)"),
    ],
)
def test_a_collapse_is_a_fall_from_above_nine_tenths_to_guessing(store, curves, expected):
    write_published(store, [PublishedCell(ALL.name, seed, None, curve, 1.0) for seed, curve in enumerate(curves)])
    assert differences.collapses(store, [ALL]) == expected


@pytest.mark.parametrize(
    ("rounds", "curve_rounds", "differs"),
    [(148, 148, True), (None, 100, True), (None, 80, False), (70, 70, False), (40, 40, False)],
)
def test_published_code_differs_alike_where_it_is_as_far_from_the_paper_on_the_same_side(
    store, rounds, curve_rounds, differs
):
    store.write(ALL, 0, result(ALL, 0, None))
    other = PublishedCell(ALL.name, 0, rounds, [0.5] * (curve_rounds + 1), 1.0)
    write_published(store, [other])
    (one,) = compare(store, [ALL])
    assert differences.differs_alike(other, one) is differs
    words = differences.explained(store)
    assert (words["published_count"], words["published_differs"]) == ("1", str(int(differs)))
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


def test_policy_orders_count_groups_with_the_papers_order(store):
    for private, rounds in {"none": 90, "all": 80, "stats": None, "affine": 30}.items():  # the paper: 99, 85, X, 29
        (cell,) = select_cells("table2", f"mnist/fedavg/{private}/W200/C0.5")
        store.write(cell, 0, result(cell, 0, rounds))
    comparisons = compare(store, select_cells("table2", "mnist/fedavg/*/W200/C0.5"))
    words = {"orders_200": "1", "orders_400": "0", "affine_first": "1", "order_groups": "1"}
    assert results.policy_orders(comparisons) == words
    assert results.policy_orders([replace(one, results=()) for one in comparisons]) == words | {
        "orders_200": "0",
        "affine_first": "0",
    }
