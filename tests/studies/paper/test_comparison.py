"""The paper's tables as data, their cells, and the terms of a cell's simulation."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.bundled.partition import parse_data_spec
from studies.paper.experiments import WITH_CELLS, Cell, cells_of, in_order, select_cells, study_of
from studies.paper.published import PRIVATE, TABLE_2, TABLE_3, Row

# Sums of the columns of each data set, added up from the paper's text.
COLUMN_SUMS = {
    ("table2", "mnist"): [228, 220, 235, 225, 158, 136, 195, 177, 240, 241, 364, 460, 69, 55, 75, 62],
    ("table2", "cifar10"): [301, 271, 290, 275, 81, 56, 91, 60, 380, 404, 368, 367, 71, 45, 81, 54],
    ("table3", "mnist"): [409, 260, 481, 0, 211, 139, 278, 260, 158, 136, 196, 177, 105, 77, 126, 141],
    ("table3", "cifar10"): [500, 299, 294, 343, 82, 56, 89, 59, 416, 346, 378, 204, 82, 48, 77, 51],
}

TABLES: Mapping[str, Mapping[str, Mapping[str, Row]]] = {"table2": TABLE_2, "table3": TABLE_3}
ALL_CELLS = [cell for which in WITH_CELLS for cell in cells_of(which)]


@pytest.mark.parametrize("table", TABLES)
def test_columns_add_up_to_what_the_printed_ones_do(table):
    """No two numbers of a row were exchanged: each column has the sum of the printed one."""
    for task, rows in TABLES[table].items():
        columns = [sum(one or 0 for one in column) for column in zip(*rows.values(), strict=True)]
        assert columns == COLUMN_SUMS[table, task]


def test_the_misprinted_block_repeats_another_and_is_not_compared():
    """Table 3's MNIST cells with private statistics differ in one number from Table 2's with all private."""
    block = {cell.short_name: cell for cell in select_cells("table3", "mnist/*/stats")}
    copied = [cell.paper for cell in select_cells("table2", "mnist/*/all")]
    assert sum(one.paper != other for one, other in zip(block.values(), copied, strict=True)) == 1
    assert [cell.name for cell in ALL_CELLS if not cell.compared and cell.where != "fig5"] == [
        cell.name for cell in block.values()
    ]


def test_there_is_one_cell_per_printed_number():
    """Both tables have 96 cells, another split of MNIST 48 (Table 3 without the misprinted block: 36), and Fig. 5 32 curves."""
    counts = {"table2": 96, "table3": 96, "aligned": 48, "even": 48, "table3-even": 36, "tuned": 64, "fig5": 32}
    counts |= {"tuning": 32 * (4 + 12), "tuning-even": 8 * (4 + 12), "restarted": 16 * 3, "restarted-even": 16 * 3}
    assert {which: len(cells_of(which)) for which in WITH_CELLS} == counts
    assert len({cell.name for cell in ALL_CELLS}) == len(ALL_CELLS)
    assert {cell.private for cell in ALL_CELLS} == set(PRIVATE)


def test_cell_name_holds_the_whole_setting():
    (cell,) = select_cells("table2", "table2/mnist/fedavg/affine/W200/C1.0")
    assert (cell.task, cell.strategy, cell.private, cell.clients, cell.participation, cell.paper) == (
        *("mnist", "fedavg", "affine"),
        *(200, 1.0, 21),
    )


@pytest.mark.parametrize(
    ("patterns", "count"),
    [
        (None, 96),
        ("mnist/*/affine/W200/*", 6),
        ("table2/mnist/*/affine/W200/*", 6),
        ("cifar10/fedavg", 16),
        ("*/W200/C1.0", 24),
        ("mnist/fedavg/none/W200/C0.5, cifar10/fedavg/none/W200/C0.5", 2),
        ("mnist/fedavg,mnist/fedavg/none", 16),
    ],
)
def test_globs_select_cells(patterns, count):
    assert len(select_cells("table2", patterns)) == count


@given(st.sampled_from(ALL_CELLS))
def test_every_cell_is_selected_by_its_name(cell: Cell):
    assert select_cells(cell.where, cell.name) == select_cells(cell.where, cell.short_name) == (cell,)


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ("mnst/*", "did you mean 'mnist/*'"),
        ("table2/mnist/fedavg/affin/W200/C1.0", "did you mean 'mnist/fedavg/affine/W200/C1.0'"),
        ("mnist/*,cifar10/fedadm", "did you mean 'cifar10/fedadam'"),
        ("nothing at all", "begins with the task"),
        (" , ", "asks for nothing"),
    ],
)
def test_glob_without_matches_error_suggests_a_near_name(patterns, words):
    with pytest.raises(UsageError, match=r"--cells") as raised:
        select_cells("table2", patterns)
    assert words in str(raised.value)


def test_unknown_table_is_an_error():
    with pytest.raises(UsageError, match="did you mean 'table2'"):
        cells_of("tabel2")


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("table2/mnist/fedavg/affine/W200/C1.0", (0.3, None, None, None)),
        ("table2/cifar10/fedavg/none/W400/C0.5", (0.1, None, None, None)),
        ("table3/mnist/fedavg-adam/all/W200/C0.5", (0.003, None, None, None)),
        ("table2/mnist/fedadam/none/W200/C1.0", (0.3, 0.01, None, None)),
        ("fig5/mnist/per-fedavg/none/W400/C0.5", (0.3, None, 0.1, None)),
        ("fig5/mnist/per-fedavg/none/W400/C1.0", (0.3, None, 0.03, None)),
        ("fig5/cifar10/per-fedavg/none/W400/C0.5", (0.3, None, 0.1, None)),
        ("fig5/cifar10/per-fedavg/none/W400/C1.0", (0.1, None, 0.1, None)),
        ("fig5/mnist/pfedme/none/W200/C0.5", (0.1, None, None, 1.0)),
        ("fig5/mnist/pfedme/none/W200/C1.0", (0.03, None, None, 3.0)),
        ("fig5/cifar10/pfedme/none/W200/C1.0", (0.1, None, None, 1.0)),
        ("fig5/cifar10/pfedme/none/W400/C0.5", (0.1, None, None, 3.0)),
    ],
)
def test_cells_are_computed_with_the_published_rates(name, rates):
    (cell,) = select_cells(name.partition("/")[0], name)
    study = study_of(cell, 0)
    assert (study.learning_rate, study.server_learning_rate, study.adaptation_rate, study.proximity) == rates


@pytest.mark.parametrize(("which", "fraction"), [("table2", 0.0), ("table3", 0.2), ("table3-even", 0.2), ("fig5", 0.0)])
def test_noise_occurs_in_table_3_only(which, fraction):
    spec = parse_data_spec(study_of(cells_of(which)[0], 7).data.format(index=1, count=200, seed=7))
    assert (spec.noisy_fraction, spec.noise, spec.seed) == (fraction, None, 7)


def test_cells_end_as_the_paper_ends_them():
    """Tables end at 97 % of MNIST, 65 % of CIFAR-10 or 500 rounds, Fig. 5 after 200 rounds."""
    ends = {(cell.where, cell.task, cell.target_ua, cell.max_rounds) for cell in ALL_CELLS}
    assert {end for end in ends if end[0] in ("table2", "table3", "fig5")} == {
        *((table, *end) for table in TABLES for end in (("mnist", 0.97, 500), ("cifar10", 0.65, 500))),
        *(("fig5", task, None, 200) for task in ("mnist", "cifar10")),
    }


def test_cheap_cells_come_first_and_every_cell_before_the_next_seed():
    order = in_order(cells_of("table2"), range(2))
    first = [cell for cell, seed in order if seed == 0]
    assert [seed for _, seed in order] == [0] * 96 + [1] * 96
    assert (first[0].task, first[-1].task) == ("mnist", "cifar10")
    assert sorted(first, key=str) == sorted(cells_of("table2"), key=str)
