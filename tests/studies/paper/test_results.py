"""Results of the paper's cells on disk: small, complete, and refused if they are damaged or of other terms."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.support.json_lines import UNFINISHED
from fedpatch.shared import __version__
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.bundled.cifar10 import ARCHIVE, JPEG75
from fedpatch.simulator.spec.study import Outcome
from studies.paper.experiments import select_cells, study_of
from studies.paper.results import ResultOrigin, Results, dataset_name, result_of
from tests.studies.fake_simulation import STARTED_AT, points_of, result

(CELL,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")
OTHER_SEED = 7


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def test_written_result_is_read_unchanged(results):
    written = result(CELL, OTHER_SEED, 21)
    results.write(CELL, OTHER_SEED, written)
    assert (results.read(CELL, OTHER_SEED), results.table(CELL).path) == (written, results.folder / "table2.jsonl")
    assert results.seeds(CELL) == [OTHER_SEED]


def test_a_result_of_an_earlier_version_has_no_commit_and_no_processor(results):
    """A line without these two keys is read; the two are None."""
    results.write(CELL, 0, result(CELL, 0, 21))
    path = results.table(CELL).path
    values = json.loads(path.read_text())
    del values["commit"], values["processor"]
    path.write_text(json.dumps(values))
    read = results.read(CELL, 0)
    assert (read.commit, read.processor) == (None, None)


def test_without_a_file_there_is_no_result(results):
    assert (results.read(CELL, 0), results.seeds(CELL), results.rounds_done(CELL, 0)) == (None, [], 0)
    assert not results.folder.exists()


def test_a_result_names_its_origin(results):
    """Command, commit, processor, versions, start, data and terms are in the line beside the numbers."""
    origin = ResultOrigin(2, "cpu", "python -m studies.paper table2", "0123abc", "Cortex-A72")
    outcome = Outcome(study_of(CELL, 0), points_of(study_of(CELL, 0), 2), True, {"torch": "2.9"})
    results.write(CELL, 0, result_of(CELL, outcome, origin, STARTED_AT))
    values = json.loads(results.table(CELL).path.read_text())
    named = ("cell", "commit", "dataset", "command", "fedpatch", "processor", "started_at", "workers")
    assert {name: values[name] for name in named} == {
        "cell": CELL.name,
        "commit": "0123abc",
        "processor": "Cortex-A72",
        "dataset": "MNIST",
        "command": "python -m studies.paper table2",
        "fedpatch": __version__,
        "started_at": STARTED_AT,
        "workers": 2,
    }
    assert (values["versions"], values["study"]["learning_rate"], values["seconds"]) == ({"torch": "2.9"}, 0.3, 0.8)


def test_the_longest_result_is_small(results):
    points = [
        replace(one, user_accuracy=0.9 + math.pi / 1e5 * one.round % 0.01, p10=math.pi / 4, train_loss=math.pi)
        for one in points_of(study_of(CELL, 0), None)
    ]
    outcome = Outcome(study_of(CELL, 0), tuple(points), True)
    results.write(CELL, 0, result_of(CELL, outcome, ResultOrigin(), STARTED_AT))
    assert len(points) == 501
    assert results.table(CELL).path.stat().st_size < 15_000


def test_a_loss_that_is_no_number_is_kept_as_absent(results):
    """Training that diverged leaves a result that any JSON reader reads."""
    points = [replace(one, train_loss=math.nan) for one in points_of(study_of(CELL, 0), 3)]
    outcome = Outcome(study_of(CELL, 0), tuple(points), True)
    results.write(CELL, 0, result_of(CELL, outcome, ResultOrigin(), STARTED_AT))
    read = results.read(CELL, 0)
    assert read is not None
    assert read.train_loss == (None, None, None)


def test_rounding_the_curve_moves_no_target(results):
    """A user accuracy just below the target does not reach it, although the written value equals the target."""
    study = study_of(CELL, 0)
    points = [replace(one, user_accuracy=0.9699996) for one in points_of(study, None)]
    results.write(CELL, 0, result_of(CELL, Outcome(study, tuple(points), True), ResultOrigin(), STARTED_AT))
    read = results.read(CELL, 0)
    assert read is not None
    assert (read.rounds_to_target, read.curve[-1]) == (None, 0.97)


DAMAGES = {
    "cut short": lambda text: text[:200],
    "empty": lambda text: "\n",
    "not an object": lambda text: "[]",
    "not text": lambda text: text.replace("MNIST", "\udcff"),
    "another format": lambda text: text.replace('"format":1', '"format":0'),
    "a value is missing": lambda text: text.replace('"seconds"', '"sceonds"'),
    "a term is missing": lambda text: text.replace('"batch_size"', '"btach_size"'),
    "its curve is cut": lambda text: text.replace('"curve":[0.47,', '"curve":['),
    "its curve is of words": lambda text: text.replace('"curve":[0.47,', '"curve":["0.47",'),
    "its curve is no list": lambda text: text.replace('"curve":[', '"curve":5,"rest":['),
    "it does not reach its target": lambda text: text.replace('"rounds_to_target":3', '"rounds_to_target":2'),
    "it diverged at its target": lambda text: text.replace('"diverged":null', '"diverged":"a loss of nan"'),
    "it ends before its last round": lambda text: text.replace('"rounds_to_target":3', '"rounds_to_target":null'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_result_is_refused_with_a_remedy(results, damage):
    results.write(CELL, 1, result(CELL, 1, 3))
    results.write(CELL, 0, result(CELL, 0, 3))
    path = results.table(CELL).path
    other, line = path.read_text().splitlines(keepends=True)
    damaged = damage(line)
    assert damaged != line
    path.write_bytes((other + damaged).encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as raised:
        results.read(CELL, 0)
    assert str(raised.value).startswith(f"{path}, line 2 is damaged (")
    assert str(raised.value).endswith("; delete the line to compute it again")


def test_a_result_on_other_terms_is_refused(results):
    other = result(CELL, 0, 3)
    results.write(CELL, 0, replace(other, study=replace(other.study, learning_rate=0.1)))
    with pytest.raises(UsageError, match=r"was computed with learning_rate 0\.1, which now is 0\.3; delete the line"):
        results.read(CELL, 0)


def test_a_finished_result_takes_the_place_of_what_was_saved(results):
    results.note_progress(CELL, 0, 5, ResultOrigin())
    results.saved(CELL, 0).mkdir(parents=True)
    assert (results.rounds_done(CELL, 0), results.unfinished_seeds(CELL), results.seeds(CELL)) == (5, [0], [])
    results.write(CELL, 0, result(CELL, 0, 21))
    assert (results.rounds_done(CELL, 0), results.unfinished_seeds(CELL), results.seeds(CELL)) == (0, [], [0])
    assert [path for path in (results.folder / UNFINISHED / "table2").rglob("*") if path.is_file()] == []


def test_cell_is_locked_by_one_process_at_a_time(results):
    with results.claimed(CELL, 0) as first, results.claimed(CELL, 0) as second, results.claimed(CELL, 1) as other:
        assert (first, second, other) == (True, False, True)
    with results.claimed(CELL, 0) as again:
        assert again


def test_a_cell_that_was_finished_meanwhile_is_not_computed_again(results):
    with results.claimed(CELL, 0) as ours:
        assert ours
        results.write(CELL, 0, result(CELL, 0, 3))
    with results.claimed(CELL, 0) as ours:
        assert not ours
    assert os.listdir(results.saved(CELL, 0).parent) == []


@pytest.mark.parametrize(
    ("files", "name"),
    [((), "CIFAR-10"), ((JPEG75,), "CIFAR-10 (JPEG q75)"), ((JPEG75, ARCHIVE), "CIFAR-10"), ((ARCHIVE,), "CIFAR-10")],
)
def test_results_on_a_copy_of_the_data_are_called_so(tmp_path, files, name):
    for file in files:
        file.path(tmp_path).parent.mkdir(exist_ok=True)
        file.path(tmp_path).touch()
    assert (dataset_name("cifar10", tmp_path), dataset_name("mnist", tmp_path)) == (name, "MNIST")
