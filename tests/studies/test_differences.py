"""Tables of the results page on cells that differ from the paper's: the value of each column for given results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from studies.pages import differences, results
from studies.paper.comparison import Comparison, compare
from studies.paper.experiments import TUNING_SEED, Cell, rate_cells, select_cells, study_of, table2_rates
from studies.paper.results import Results
from studies.paper.tuning import choose_rates
from studies.published_code import PublishedCell
from tests.studies.fake_simulation import diverged_result, result

(NONE,) = select_cells("table2", "mnist/fedadam/none/W200/C1.0")  # 69 rounds in the paper
(CROSSED,) = select_cells("table2", "mnist/fedavg/stats/W200/C1.0")  # X
(ALL,) = select_cells("table2", "mnist/fedavg/all/W400/C1.0")  # 68 rounds
(ADAM_ALL,) = select_cells("table2", "mnist/fedadam/all/W200/C1.0")  # 37 rounds


@pytest.fixture
def store(tmp_path: Path) -> Results:
    return Results(tmp_path)


def compared(cell: Cell, rounds: Sequence[int | None]) -> Comparison:
    return Comparison(cell, tuple(result(cell, seed, one) for seed, one in enumerate(rounds)))


def experiment_on(store: Results, cell: Cell) -> str:
    """Return the experiment that agrees on the only differing cell, after a check that the table has the cell in its row."""
    (one,) = compare(store, [cell])
    name = differences.agreeing_experiment(store, one)
    text = {experiment: text for experiment, text, _ in differences.EXPERIMENTS}[name]
    setting = cell.short_name.removeprefix("mnist/").replace("/", " ")
    assert f"| {text} | 1 | {setting} |" in differences.agreements(store)["agreements"]
    return name


def write_published(store: Results, cells: Sequence[PublishedCell]) -> None:
    folder = store.folder / "published"
    folder.mkdir()
    (folder / "mnist.json").write_text(json.dumps({"cells": [asdict(one) for one in cells]}))


@pytest.mark.parametrize(
    ("cell", "rounds", "expected"),
    [
        (NONE, (60, 70, 110), True),
        (NONE, (100, 101, 102), False),
        (NONE, (60, 110), False),
        (NONE, (60, 70, None), False),
        (CROSSED, (480, None), True),
        (CROSSED, (480, 490), False),
        (CROSSED, (None, None), False),
    ],
)
def test_within_chance_holds_for_close_means_or_an_x_that_some_seeds_share(cell, rounds, expected):
    assert differences.within_chance(compared(cell, rounds)) is expected


@pytest.mark.parametrize(("rounds", "expected"), [((100,), True), ((50,), False), ((50, None), True)])
def test_slower_holds_for_more_rounds_and_for_a_target_that_is_not_reached(rounds, expected):
    assert differences.slower(compared(NONE, rounds)) is expected


def test_accuracy_at_the_papers_round_is_the_last_one_of_a_run_that_ended_before():
    late, early = compared(NONE, (100,)), compared(NONE, (50,))
    assert differences.accuracy_at_paper(late) == late.results[0].curve[69]
    assert differences.accuracy_at_paper(early) == early.results[0].curve[50]


@pytest.mark.parametrize(
    ("here", "other", "shown", "experiment", "agreeing"),
    [
        (148, 64, "64", "split", "1"),
        (148, 30, "30\\*", "**none**; the paper's rounds lie between those of two splits", "0"),
        (None, 30, "30\\*", "**none**; the paper's rounds lie between those of two splits", "0"),
        (148, 120, "120\\*", "**none**", "0"),
    ],
)
def test_a_split_agrees_only_with_rounds_like_the_papers(store, here, other, shown, experiment, agreeing):
    store.write(ALL, 0, result(ALL, 0, here))
    (aligned,) = select_cells("aligned", ALL.short_name)
    assert experiment_on(store, ALL) == "**none**"
    store.write(aligned, 0, result(aligned, 0, other))
    assert experiment_on(store, ALL) == experiment
    words = differences.agreements(store)
    assert (words["differing_count"], words["agreeing_count"]) == ("1", agreeing)
    assert f"| fedavg all W400 C1.0 | {here or 'X'}\\* | | {shown} | 68 |" in differences.splits_table(store)


def test_a_split_whose_seeds_are_too_few_to_show_a_difference_does_not_agree(store):
    store.write(ALL, 0, result(ALL, 0, None))
    (even,) = select_cells("even", ALL.short_name)
    for seed, rounds in enumerate((40, 70, 150)):  # the mean is 87, the paper's 68
        store.write(even, seed, result(even, seed, rounds))
    assert experiment_on(store, ALL) == "**none**"
    store.write(even, 2, result(even, 2, 100))  # the mean is 70
    assert experiment_on(store, ALL) == "split"


@pytest.mark.parametrize(
    ("trials", "experiment"), [((20, 75), "another rate"), ((70, 90), "best rate"), ((20, 30), "seeds")]
)
def test_a_cell_counts_at_the_best_rate_then_at_a_slower_one_and_last_at_too_few_seeds(store, trials, experiment):
    for seed, rounds in enumerate((60, 80, 120)):  # the mean is 87; too few to show a difference from 69
        store.write(NONE, seed, result(NONE, seed, rounds))
    assert experiment_on(store, NONE) == "seeds"
    assert differences.agreements(store)["agreeing_count"] == "0"
    (tuned,) = select_cells("tuned", NONE.short_name)
    for trial, rounds in zip(rate_cells(tuned), trials, strict=False):
        store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, rounds))
    best = choose_rates(tuned, store)
    store.write(best, 0, result(best, 0, min(trials)))
    assert experiment_on(store, NONE) == experiment


def test_effects_of_tuning_count_cells_whose_best_rates_are_those_of_table_2(store):
    """FedAdam without private values keeps its rates; with private `all` a rate is best that needs more rounds."""
    best = {NONE: table2_rates(NONE), ADAM_ALL: (0.1, 0.003)}
    for cell, rates in best.items():
        store.write(cell, 0, result(cell, 0, 60))
        (tuned,) = select_cells("tuned", cell.short_name)
        trial = next(one for one in rate_cells(tuned) if one.rates == rates)
        store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, None if cell is NONE else 20))
    (tuned,) = select_cells("tuned", ADAM_ALL.short_name)
    chosen = choose_rates(tuned, store)
    store.write(chosen, 0, result(chosen, 0, 61))
    comparisons = [differences.with_best_rates(store, cell) for cell in best]
    assert [one.cell.where for one in comparisons] == ["table2", "tuned"]
    assert differences.with_other_rates(store, NONE) is None
    assert differences.effects_of_tuning(store, comparisons, compare(store, list(best))) == {
        "tuned_own": "1",
        "tuned_unreached": "1",
        "tuned_worse": "1",
    }


def test_fewer_rounds_counts_cells_that_differ_and_an_x_of_the_paper_as_more(store):
    cells: dict[str, int | None] = {
        "table3/mnist/fedadam/all/W200/C0.5": 30,
        "table3/mnist/fedadam/affine/W200/C0.5": 43,
    }  # the paper: 76, 43
    cells |= {"table3/mnist/fedavg/none/W400/C1.0": 449, "table3/mnist/fedavg/all/W400/C1.0": None}  # the paper: X, 144
    for name, rounds in cells.items():
        (cell,) = select_cells("table3", name)
        store.write(cell, 0, result(cell, 0, rounds))
    assert results.fewer_rounds(compare(store, select_cells("table3", ",".join(cells)))) == "2 of 3"


@pytest.mark.parametrize(("table", "split", "prefix"), [("table2", "even", ""), ("table3", "table3-even", "noisy_")])
def test_agreement_on_even_compares_the_seeds_that_both_splits_have(store, table, split, prefix):
    (cell,) = select_cells(table, ALL.short_name)
    (even,) = select_cells(split, ALL.short_name)
    assert cell.paper is not None
    for seed, rounds in enumerate((cell.paper, None)):
        store.write(cell, seed, result(cell, seed, rounds))
    store.write(even, 0, result(even, 0, 30))
    counts = {"even_cells": 1, "even_agree": 0, "even_shard_agree": 1, "even_reach": 1, "even_shard_reach": 1}
    found = differences.agreement_on_even(store, table)
    assert found == {f"{prefix}{name}": str(number) for name, number in counts.items()}


def test_results_of_the_published_code_are_told_apart_by_the_way_it_ran(store):
    curve = [0.5] * 30
    ways = {
        21: PublishedCell(ALL.name, 0, 21, curve, 1.0),
        14: PublishedCell(ALL.name, 0, 14, curve, 1.0, device="cuda"),
        15: PublishedCell(ALL.name, 0, 15, curve, 1.0, copied=True),
        16: PublishedCell(ALL.name, 1, 16, curve, 1.0, copied=True),
        12: PublishedCell(ALL.name, 0, 12, curve, 1.0, corrected=True),
    }
    write_published(store, list(ways.values()))
    found = {way: [one.rounds_to_target for one in differences.published(store, ALL, way)] for way in differences.WAYS}
    assert found == {"cpu": [21], "gpu": [14, 16], "corrected": [12]}


@pytest.mark.parametrize(("rounds", "experiment"), [(60, "published code"), (100, "**none**")])
def test_the_published_code_as_on_a_gpu_is_an_experiment(store, rounds, experiment):
    for seed in range(3):
        store.write(ALL, seed, result(ALL, seed, None))
    curve = [0.5] * (rounds + 1)
    on_cpu = PublishedCell(ALL.name, 0, None, [0.5] * 101, 1.0)
    write_published(store, [on_cpu, PublishedCell(ALL.name, 0, rounds, curve, 1.0, copied=True)])
    assert experiment_on(store, ALL) == experiment
    assert f"| {rounds} |" in differences.differing_table(store)


def test_training_that_diverges_is_counted(store):
    cells = select_cells("table2", "mnist/fedadam/all")
    for cell, rounds in zip(cells, (0, 2), strict=False):
        store.write(cell, 0, diverged_result(cell, 0, rounds))
    store.write(cells[2], 0, result(cells[2], 0, None))
    assert differences.outcome(store.read(cells[0], 0)) == "div."
    assert differences.diverging(compare(store, cells)) == "2 of 3 trials, in 1 in the first round"


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
    ("rounds", "curve_rounds", "place", "counted"),
    [
        (148, 148, 1, "alike"),
        (None, 100, 1, "alike"),
        (None, 80, None, "undecided"),
        (None, 40, None, "undecided"),
        (70, 70, 0, "agree"),
        (40, 40, -1, "opposite"),
    ],
)
def test_side_of_the_published_code_is_decided_by_the_limits_of_agreement(store, rounds, curve_rounds, place, counted):
    store.write(ALL, 0, result(ALL, 0, None))
    other = PublishedCell(ALL.name, 0, rounds, [0.5] * (curve_rounds + 1), 1.0)
    write_published(store, [other])
    assert ALL.paper is not None
    assert differences.side([other], ALL.paper) == place
    words = differences.published_sides(store)
    assert words == {
        f"published_{name}": str(int(name in ("count", counted)))
        for name in ("count", "alike", "agree", "opposite", "collapsed", "undecided")
    }
    text = f">{curve_rounds}" if rounds is None else str(rounds)
    assert f"| {text} |" in differences.differing_table(store)


def test_a_collapse_of_the_published_code_is_no_agreement_with_ours(store):
    store.write(ALL, 0, result(ALL, 0, None))
    write_published(store, [PublishedCell(ALL.name, 0, None, [0.5, 0.95, *[0.1] * 99], 1.0)])
    words = differences.published_sides(store)
    assert (words["published_collapsed"], words["published_alike"]) == ("1", "0")


@pytest.mark.parametrize(
    ("rounds", "curve_rounds", "counted", "text"),
    [(446, 446, "alike", "446"), (None, 446, "undecided", ">446"), (None, 500, "agree", "X")],
)
def test_the_published_code_is_like_ours_if_both_reach_a_target_that_the_papers_does_not(
    store, rounds, curve_rounds, counted, text
):
    for seed, ours in enumerate((480, 490)):
        store.write(CROSSED, seed, result(CROSSED, seed, ours))
    write_published(store, [PublishedCell(CROSSED.name, 0, rounds, [0.5] * (curve_rounds + 1), 1.0)])
    words = differences.published_sides(store)
    assert (words["published_count"], words[f"published_{counted}"]) == ("1", "1")
    assert f"| {text} |" in differences.differing_table(store)


def test_effect_of_the_step_on_zeros_is_counted_over_cells_that_ran_with_and_without_it(store):
    cells = select_cells("table2", "mnist/fedavg-adam/all")
    ran = [
        PublishedCell(cell.name, 0, rounds, [0.5] * (rounds + 1), 1.0, corrected=corrected, copied=not corrected)
        for cell, pair in zip(cells, ((28, 36), (29, 25), (24, 24), (30,)), strict=True)
        for corrected, rounds in zip((False, True), pair, strict=False)
    ]
    (missed,) = select_cells("table2", "mnist/fedavg-adam/affine/W200/C0.5")
    ran.append(PublishedCell(missed.name, 0, 90, [0.5] * 91, 1.0, copied=True))
    ran.append(PublishedCell(missed.name, 0, None, [0.5] * 61, 1.0, corrected=True))
    write_published(store, ran)
    found = differences.zero_step_effect(store)
    assert found == {"corrected_count": "3", "corrected_fewer": "1", "corrected_more": "1"}


def test_a_trial_that_misses_the_target_does_not_show_it_as_its_best_accuracy():
    missed = result(NONE, 0, None)
    assert differences.outcome(replace(missed, curve=(0.9, 0.96996))) == "X (0.969)"


def test_each_grid_of_rates_has_one_task(store):
    for task in ("mnist", "cifar10"):
        (trial,) = select_cells("tuning", f"{task}/fedadam/all/W200/C0.5/rate0.3-server0.01")
        store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, 20))
    shown = differences.grids(store)
    assert [line.split(" |")[0] for line in shown.splitlines() if "clients" in line] == [
        "| mnist, fedadam",
        "| cifar10, fedadam",
    ]


def test_rates_like_the_papers_are_those_of_the_nearest_trial_within_the_limits(store):
    trials = rate_cells(replace(NONE, where="tuned"))
    for trial, rounds in zip(trials[:3], (20, 75, 70), strict=True):
        store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, rounds))
    found = differences.rates_like_the_papers(store, NONE)
    assert found is not None
    assert found[0].rates == trials[2].rates
    assert "| fedadam none W200 C1.0 | 0.03 | 20 | 75 | 70 | - | 69 |" in differences.grids(store)


def test_server_rates_are_counted_by_cell_over_the_rates_of_the_clients(store):
    assert differences.server_rate_agreements(store) == ""
    trials = {one.rates: one for one in rate_cells(replace(NONE, where="tuned"))}
    for rates, rounds in {(0.03, 0.003): None, (0.1, 0.003): 70, (0.3, 0.003): 75, (0.1, 0.01): 20}.items():
        store.write(trials[rates], TUNING_SEED, result(trials[rates], TUNING_SEED, rounds))
    (trial,) = select_cells("tuning", "mnist/fedadam/none/W200/C0.5/rate0.1-server0.003")  # 85 rounds in the paper
    store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, 30))
    assert differences.server_rate_agreements(store) == "1 of 2 with 0.003, 0 of 1 with 0.01"


def test_cell_agrees_if_one_rate_with_a_restarted_count_of_steps_takes_the_papers_rounds(store):
    (cell,) = select_cells("table2", "mnist/fedavg-adam/all/W200/C0.5")  # 17 rounds in the paper
    store.write(cell, 0, result(cell, 0, 31))
    cells = {one.rates: one for one in select_cells("restarted", cell.short_name)}
    store.write(cells[0.003, None], 0, result(cells[0.003, None], 0, 26))
    assert experiment_on(store, cell) == "**none**"
    for seed, rounds in enumerate((19, 16)):
        store.write(cells[0.01, None], seed, result(cells[0.01, None], seed, rounds))
    assert experiment_on(store, cell) == "restarted"
    assert differences.agreements(store)["agreeing_count"] == "1"
    shown = "| fedavg-adam all W200 C0.5 | 31\\* | 26\\* | 17.5 (16-19) | | | | | 17 |"
    assert shown in differences.restarted_table(store)


def test_restarted_steps_are_compared_with_a_trial_of_the_same_rate(store):
    for rate, without in {0.003: 14, 0.01: 40, 0.03: None}.items():
        (cell,) = select_cells("restarted", f"mnist/fedavg-adam/all/W200/C0.5/rate{rate}")  # 17 rounds in the paper
        store.write(cell, 0, result(cell, 0, 18))
        if without is not None:
            (trial,) = select_cells("tuning", cell.short_name)
            store.write(trial, TUNING_SEED, result(trial, TUNING_SEED, without))
    assert differences.restarted_agreements(store).splitlines()[2:] == ["| 0.003 | 1 | 1 | 1 |", "| 0.01 | 1 | 1 | 0 |"]


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
