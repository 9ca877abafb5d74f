"""Our results beside the paper's: numbers, verdicts, tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedpatch.shared.errors import UsageError
from studies.paper.comparison import (
    Comparison,
    compare,
    count,
    format_entry,
    legend,
    markdown,
    rich_table,
    tables,
    to_json,
)
from studies.paper.experiments import cells_of, select_cells
from studies.paper.results import ResultOrigin, Results
from tests.studies.fake_simulation import diverged_result, result

(CELL,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")  # 21 in the paper
(CROSSED,) = select_cells("table2", "mnist/fedavg/stats/W200/C1.0")  # X in the paper
(MISPRINTED,) = select_cells("table3", "mnist/fedavg/stats/W200/C1.0")
(CURVE,) = select_cells("fig5", "mnist/fedavg/affine/W200/C1.0")


def of(cell, *needed: int | None, unfinished_rounds: int = 0) -> Comparison:
    """A cell with the number of rounds of each seed."""
    return Comparison(cell, tuple(result(cell, seed, one) for seed, one in enumerate(needed)), unfinished_rounds)


@pytest.mark.parametrize(
    ("comparison", "ours", "within"),
    [
        (of(CELL), "-", None),
        (of(CELL, 21), "21", True),
        (of(CELL, 25), "25", True),
        (of(CELL, 26), "26", False),
        (of(CELL, 17), "17", True),
        (of(CELL, 16), "16", False),
        (of(CELL, 20, 21, 28), "23 (20-28)", True),
        (of(CELL, 21, 22), "21.5 (21-22)", True),
        (of(CELL, 21, 21), "21", True),
        (of(CELL, None), "X", False),
        (of(CELL, 21, None), "X (1 of 2: 21)", False),
        (of(CELL, 21, None, 22), "X (2 of 3: 21-22)", False),
        (of(CELL, unfinished_rounds=24), ">24", None),
        (of(CELL, unfinished_rounds=26), ">26", False),
        (of(CROSSED, None), "X", True),
        (of(CROSSED, 480), "480", False),
        (of(CROSSED, 480, None, None), "X (1 of 3: 480)", True),
        (of(CROSSED, 480, None), "X (1 of 2: 480)", False),
        (of(CROSSED, unfinished_rounds=480), ">480", None),
        (of(MISPRINTED, 58), "58", None),
        (of(MISPRINTED, unfinished_rounds=480), ">480", None),
    ],
)
def test_summary_has_our_mean_range_and_verdict(comparison, ours, within):
    """The mean over seeds, its range, and whether it is within 20 % or 3 rounds; None if a simulation may still be within."""
    assert (comparison.ours(), comparison.within) == (ours, within)


@given(st.integers(1, 500), st.integers(0, 500))
def test_agreement_has_a_width_on_both_sides(paper, ours):
    """A cell agrees where the difference is at most a fifth of the paper's number, or at most 3."""
    cell = replace(CELL, paper=paper)
    comparison = Comparison(cell, (replace(result(CELL, 0, 1), rounds_to_target=ours),))
    assert comparison.within == (abs(ours - paper) <= 3 or 5 * abs(ours - paper) <= paper)


def test_cells_are_counted_by_what_became_of_them():
    comparisons = [
        of(CELL, 21),
        of(CELL, 40),
        of(CELL),
        of(CELL, unfinished_rounds=99),
        of(MISPRINTED, 58),
        of(CROSSED, None),
    ]
    assert str(count(comparisons)) == "4 of 6 cells finished; 2 of 4 within 20 % or 3 rounds of the paper's"
    assert str(count([of(CELL)])) == "0 of 1 cells finished"


def test_summary_compares_the_results_on_disk(tmp_path: Path):
    results = Results(tmp_path)
    results.write(CELL, 0, result(CELL, 0, 20))
    results.write(CELL, 4, result(CELL, 4, 22))
    results.note_progress(CROSSED, 0, 100, ResultOrigin())
    results.note_progress(CROSSED, 1, 120, ResultOrigin())
    assert [one.ours() for one in compare(results, [CELL, CROSSED, MISPRINTED])] == ["21 (20-22)", ">120", "-"]


def test_a_damaged_result_is_not_left_out(tmp_path: Path):
    results = Results(tmp_path)
    results.write(CELL, 0, result(CELL, 0, 20))
    results.table(CELL).path.write_text("\n")
    with pytest.raises(UsageError, match="is damaged"):
        compare(results, [CELL])


def test_markdown_is_laid_out_like_the_papers_tables():
    comparisons = [
        Comparison(cell) for cell in select_cells("table2", "*/fedavg/affine/W200/*,mnist/fedavg/stats/W200/C1.0")
    ]
    filled = {CELL.name: of(CELL, 20, 40), CROSSED.name: of(CROSSED, None)}
    comparisons = [filled.get(one.cell.name, one) for one in comparisons]
    text = markdown(comparisons)
    assert text.splitlines()[:12] == [
        "### MNIST",
        "",
        "| strategy | private | W=200 C=0.5 | W=200 C=1.0 |",
        "| --- | --- | --- | --- |",
        "| fedavg | stats |  | X / X |",
        r"| fedavg | affine | - / 29 | 30 (20-40) / 21\* |",
        "",
        "### CIFAR-10",
        "",
        "| strategy | private | W=200 C=0.5 | W=200 C=1.0 |",
        "| --- | --- | --- | --- |",
        "| fedavg | affine | - / 37 | - / 24 |",
    ]
    assert text.endswith(f"\n\n{legend(comparisons)}\n")


def test_a_table_bears_the_name_of_the_data_that_were_used():
    copied = replace(result(CELL, 0, 20), dataset="MNIST (copy)")
    assert tables([Comparison(CELL, (copied,))])[0].title == "MNIST (copy)"
    assert tables([Comparison(CELL, (copied, result(CELL, 1, 20)))])[0].title == "MNIST (copy) and MNIST"


def test_cells_of_a_figure_are_summarised_by_user_accuracy():
    (grid,) = tables([of(CURVE, None, None), Comparison(replace(CURVE, clients=400))])
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(rich_table(grid))
    assert captured.get().split() == [
        *("MNIST", "strategy", "private", "W=200", "C=1.0", "W=400", "C=1.0"),
        *("fedavg", "affine", "0.968", "(0.968)", "-"),
    ]
    assert "in brackets of the best round" in legend([of(CURVE, None)])


def test_training_that_diverges_is_not_a_round_of_a_figure():
    cell = cells_of("fig5")[0]
    assert format_entry(Comparison(cell, (diverged_result(cell, 0, 3),))) == "div."
    whole = Comparison(cell, (result(cell, 0, None),))
    assert format_entry(replace(whole, results=(*whole.results, diverged_result(cell, 1, 3)))) == format_entry(whole)


def test_training_that_diverges_does_not_reach_the_target():
    (cell,) = select_cells("table2", "mnist/fedavg/stats/W200/C1.0")
    assert Comparison(cell, (diverged_result(cell, 0, 3),)).within
    mixed = Comparison(cell, (diverged_result(cell, 0, 3), result(cell, 1, 20)))
    assert (mixed.ours(), mixed.diverged) == ("X (1 of 2: 20)", 1)


def test_a_terminal_shows_agreement_in_colour():
    scenarios = select_cells("table2", "mnist/fedavg/affine")
    (grid,) = tables([of(scenarios[0], 29), of(scenarios[1], 60), of(scenarios[2])])
    console = Console(width=200, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(rich_table(grid))
    row = captured.get().splitlines()[-1]
    assert [part.split("m", 1) for part in re.findall(r"\x1b\[(3.*?)\x1b", row)] == [
        ["32", "    29 / 29"],
        ["31", "   60 / 21*"],
    ]


def test_json_holds_everything_and_is_json():
    values = to_json([of(CELL, 20, 23), of(CROSSED), *(Comparison(cell) for cell in cells_of("table3"))])
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["count"] == {"cells": 98, "finished": 1, "within": 1, "outside": 0}
    assert {name: values["cells"][0][name] for name in ("cell", "seeds", "rounds_to_target", "paper", "within")} == {
        "cell": CELL.name,
        "seeds": [0, 1],
        "rounds_to_target": [20, 23],
        "paper": 21,
        "within": True,
    }
