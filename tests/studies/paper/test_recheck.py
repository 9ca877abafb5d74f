"""Recorded cells computed again: the verdict, and which new results are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.shared.errors import UsageError
from studies.paper.experiments import select_cells, select_named_cells
from studies.paper.recheck import Recheck, discard_stale, folder_of, rechecks, require_recorded
from studies.paper.results import ResultOrigin, Results
from tests.studies.fake_simulation import diverged_result, result

(CELL,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")


@pytest.mark.parametrize(
    ("recorded", "again", "verdict"),
    [
        (21, 21, "same"),
        (21, 28, "within"),
        (21, 29, "outside"),
        (7, 10, "within"),
        (100, 65, "within"),
        (100, 64, "outside"),
        (None, None, "same"),
        (None, 499, "outside"),
        (499, None, "outside"),
    ],
)
def test_verdict_depends_on_the_difference_of_rounds(recorded, again, verdict):
    assert Recheck(result(CELL, 0, recorded), result(CELL, 0, again)).verdict == verdict


@pytest.mark.parametrize(
    ("again", "verdict"), [(diverged_result(CELL, 0, 3), "same"), (result(CELL, 0, None), "outside")]
)
def test_training_that_diverged_has_to_diverge_again(again, verdict):
    one = Recheck(diverged_result(CELL, 0, 3), again)
    assert one.verdict == verdict
    assert one.to_dict()["recorded"]["diverged"] == "client 3: a loss of nan"


def test_verdict_of_other_bits_with_equal_rounds_is_within():
    recorded = result(CELL, 0, 21)
    again = replace(recorded, curve=(recorded.curve[0] + 0.001, *recorded.curve[1:]))
    one = Recheck(recorded, again)
    assert one.verdict == "within"
    assert one.largest_difference == pytest.approx(0.001)


def test_require_recorded_names_the_command_that_computes_a_missing_cell(tmp_path: Path):
    results = Results(tmp_path / "my results")
    results.write(CELL, 0, result(CELL, 0, 21))
    with pytest.raises(UsageError) as caught:
        require_recorded([CELL], [0, 1], results)
    command = f"paper table2 --cells mnist/fedavg/affine/W200/C1.0 --seeds 2 --results '{results.folder}'"
    assert str(caught.value).endswith(command)


@pytest.mark.parametrize(("made_by", "now", "kept"), [("a", "a", True), ("a", "b", False), (None, None, False)])
def test_discard_stale_keeps_new_results_of_the_present_commit_only(tmp_path: Path, made_by, now, kept):
    again = Results(folder_of(tmp_path, "Cortex-A72 (r0p3)"))
    again.write(CELL, 0, replace(result(CELL, 0, 21), commit=made_by))
    discard_stale([CELL], [0], again, ResultOrigin(commit=now))
    assert (again.read(CELL, 0) is not None) == kept
    assert again.folder == tmp_path / "rechecks" / "cortex-a72-r0p3"


@pytest.mark.parametrize(("made_by", "now", "kept"), [("a", "a", True), ("a", "b", False), (None, None, True)])
def test_discard_stale_keeps_unfinished_rounds_of_the_present_commit_only(tmp_path: Path, made_by, now, kept):
    again = Results(tmp_path)
    again.saved(CELL, 0).mkdir(parents=True)
    again.note_progress(CELL, 0, 7, ResultOrigin(commit=made_by))
    discard_stale([CELL], [0], again, ResultOrigin(commit=now))
    assert (again.saved(CELL, 0).exists(), again.rounds_done(CELL, 0)) == (kept, 7 if kept else 0)


def test_rechecks_without_a_new_result_leaves_the_cell_out(tmp_path: Path):
    recorded, again = Results(tmp_path / "recorded"), Results(tmp_path / "again")
    recorded.write(CELL, 0, result(CELL, 0, 21))
    assert rechecks([CELL], [0], recorded, again) == []
    again.write(CELL, 0, result(CELL, 0, 22))
    assert [one.verdict for one in rechecks([CELL], [0], recorded, again)] == ["within"]


def test_select_named_cells_spans_tables():
    cells = select_named_cells("table2/mnist/fedavg/affine/W200/C1.0, table3/mnist/fedavg/affine/W200/C1.0")
    assert [one.where for one in cells] == ["table2", "table3"]


@pytest.mark.parametrize("pattern", ["mnist/fedavg", "tuned/mnist", "fig5/mnist", "table2/mnist/fedsgd", ",", ""])
def test_select_named_cells_of_no_or_an_unknown_table_or_cell_is_refused(pattern):
    with pytest.raises(UsageError):
        select_named_cells(pattern)
