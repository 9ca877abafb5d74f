"""The words of the results page on results that were computed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies.pages import machines
from studies.paper.experiments import TUNING_SEED, rate_cells, select_cells, table2_rates
from studies.paper.results import Result, Results
from tests.studies.fake_simulation import result

(CELL,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")  # 21 rounds in the paper


@pytest.fixture
def store(tmp_path: Path) -> Results:
    return Results(tmp_path)


def write(store: Results, folder: str, *results: Result) -> None:
    """Write results of CELL, of seed 0 on, below a folder of the store."""
    for seed, one in enumerate(results):
        Results(store.folder / folder).write(CELL, seed, one)


def test_order_of_sums_compares_the_results_before_and_after_the_commit(store):
    write(store, "order-of-sums/before", result(CELL, 0, 20), result(CELL, 1, 22))
    write(store, "order-of-sums/after", result(CELL, 0, 27), result(CELL, 1, 22))
    write(store, "rechecks/n100", result(CELL, 0, 50))
    assert machines.order_of_sums(store) == {
        "reordered_on": "",
        "reordered": "2",
        "reordered_same": "1",
        "reordered_rounds": "20 to 27",
    }


def test_a_new_result_without_a_recorded_one_is_an_error(store):
    write(store, "rechecks/n100", result(CELL, 0, 20))
    with pytest.raises(FileNotFoundError, match=r"a seed in .*n100 has no result"):
        machines.spread(store)


@pytest.mark.parametrize(("rounds", "outside"), [(20, "0"), (24, "0"), (19, "1"), (25, "1"), (None, "1")], ids=str)
def test_spread_counts_new_rounds_outside_the_range_of_the_recorded_seeds(store, rounds, outside):
    write(store, ".", result(CELL, 0, 20), result(CELL, 1, 24))
    write(store, "rechecks/n100", replace(result(CELL, 0, rounds), processor="n100"))
    assert machines.spread(store)["moved_outside"] == outside


def test_spread_counts_the_causes_besides_the_processor(store):
    recorded = replace(result(CELL, 0, 20), processor="n100", started_at="2026-11-26T09:00:00+00:00")
    write(store, ".", recorded)
    causes: dict[str, dict[str, Any]] = {
        "cortex-a76": {"processor": "cortex-a76"},
        "other-versions": {"versions": {"torch": "9.9"}},
        "other-order": {"processor": "cortex-a76", "started_at": "2026-11-26T10:00:00+00:00"},
    }
    for name, change in causes.items():
        write(store, f"rechecks/{name}", replace(recorded, **change))
    found = machines.spread(store)
    counts = [found[name] for name in ("moved", "moved_unnamed", "moved_versions", "moved_order", "rechecked_w400")]
    assert counts == ["3", "0", "1", "1", "0"]


def test_origins_count_a_cell_once_that_two_tables_have(store):
    (tuned,) = select_cells("tuned", "mnist/fedadam/affine/W200/C1.0")
    (table_2,) = select_cells("table2", tuned.short_name)
    trial = next(one for one in rate_cells(tuned) if one.rates == table2_rates(table_2))
    store.write(trial, TUNING_SEED, replace(result(trial, TUNING_SEED, 20), commit="a-dirty", processor="n100"))
    store.write(table_2, 0, result(table_2, 0, 20))
    text = machines.origins(store)
    assert text.startswith(
        "1 of 2 results of the tables and of Fig. 5 name commit and processor; 1 of them name a commit"
    )


def test_a_cell_that_two_processors_computed_again_has_one_verdict(store):
    write(store, ".", result(CELL, 0, 20))
    for processor, rounds in (("cortex-a76", 22), ("n100", 26)):
        write(store, f"rechecks/{processor}", replace(result(CELL, 0, rounds), processor=processor))
    found = machines.spread(store)
    assert (found["same_verdicts"], found["spread_rounds"]) == ("0 of 1", "20 to 26")
    assert (found["moved"], found["moved_same"], found["moved_unnamed"]) == ("2", "0", "2")


@pytest.mark.parametrize(
    ("change", "repeated"), [({}, 1), ({"processor": "n100"}, 0), ({"versions": {"torch": "9.9"}}, 0)]
)
def test_a_result_is_repeated_if_processor_and_versions_are_those_that_it_names(store, change, repeated):
    recorded = replace(result(CELL, 0, 20), processor="cortex-a76")
    write(store, ".", recorded)
    write(store, "rechecks/again", replace(recorded, **change))
    found = machines.spread(store)
    assert (found["repeated"], found["moved"]) == (str(repeated), str(1 - repeated))
    assert (found["repeated_same"], found["moved_same"]) == (found["repeated"], found["moved"])
