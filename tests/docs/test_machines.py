"""The words of the results page on results that were computed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.simulator.paper.experiments import select_cells
from fedpatch.simulator.paper.results import Results
from scripts.reference import machines
from tests.simulator.fake_simulation import result


@pytest.fixture
def store(tmp_path: Path) -> Results:
    return Results(tmp_path)


def test_order_of_sums_compares_both_codes_on_each_processor(store):
    (cell,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")
    for folder, rounds in (("order-of-sums/n100", 20), ("rechecks/n100", 27), ("rechecks/cortex-a76", 50)):
        Results(store.folder / folder).write(cell, 0, result(cell, 0, rounds))
    assert machines.order_of_sums(store) == {
        "reordered": "1",
        "reordered_same": "0",
        "reordered_rounds": "20 to 27",
    }


def test_a_cell_that_two_processors_computed_again_has_one_verdict(store):
    (cell,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")  # 21 rounds in the paper
    store.write(cell, 0, result(cell, 0, 20))
    for processor, rounds in (("cortex-a76", 22), ("n100", 26)):
        again = replace(result(cell, 0, rounds), processor=processor)
        Results(store.folder / "rechecks" / processor).write(cell, 0, again)
    found = machines.spread(store)
    assert (found["same_verdicts"], found["spread_rounds"]) == ("0 of 1", "20 to 26")
    assert (found["moved"], found["moved_same"], found["moved_unnamed"]) == ("2", "0", "2")


@pytest.mark.parametrize(
    ("change", "repeated"), [({}, 1), ({"processor": "n100"}, 0), ({"versions": {"torch": "9.9"}}, 0)]
)
def test_a_result_is_repeated_if_processor_and_versions_are_those_that_it_names(store, change, repeated):
    (cell,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")
    recorded = replace(result(cell, 0, 20), processor="cortex-a76")
    store.write(cell, 0, recorded)
    Results(store.folder / "rechecks" / "again").write(cell, 0, replace(recorded, **change))
    found = machines.spread(store)
    assert (found["repeated"], found["moved"]) == (str(repeated), str(1 - repeated))
    assert (found["repeated_same"], found["moved_same"]) == (found["repeated"], found["moved"])
