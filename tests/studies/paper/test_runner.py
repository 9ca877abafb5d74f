"""Computing the paper's cells: only missing cells, cheap ones first, none twice, and none lost by an interruption."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fedpatch.shared.errors import UpdateRefused, UsageError
from studies.paper.experiments import select_cells
from studies.paper.results import ResultOrigin, Results
from studies.paper.runner import CellWatcher, Sum, run_paper
from tests.studies.fake_simulation import Player, points_of

CELLS = select_cells("table2", "mnist/*/affine/W200/*")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


class Diary(CellWatcher):
    """Records the calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begins(self, cell, seed, place, count):
        self.lines.append(f"{place}/{count} {cell.short_name} {seed}")

    def point(self, cell, seed, point):
        self.lines.append(str(point.round))

    def finished(self, cell, seed, result):
        self.lines.append(f"-> {result.rounds_to_target}")


class Stop:
    """Returns True once it was called more than `count` times."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_every_missing_cell_is_computed_and_kept(results):
    player = Player()
    done = run_paper(CELLS, range(2), results, ResultOrigin(), simulate=player)
    assert done == Sum(present=0, computed=12)
    assert all(results.seeds(cell) == [0, 1] for cell in CELLS)
    assert [study.seed for study in player.studies] == [0] * 6 + [1] * 6
    assert (player.studies[0].strategy, player.studies[5].strategy) == ("fedavg-adam", "fedadam")


def test_nothing_is_computed_twice(results):
    run_paper(CELLS[:2], range(1), results, ResultOrigin(), simulate=Player())
    player = Player()
    assert run_paper(CELLS, range(1), results, ResultOrigin(), simulate=player) == Sum(2, 4)
    assert len(player.studies) == 4
    assert run_paper(CELLS, range(1), results, ResultOrigin(), simulate=player) == Sum(6, 0)


def test_runner_reports_each_cell_to_its_watcher(results):
    run_paper(CELLS[:1], range(1), results, ResultOrigin(), simulate=Player())
    diary = Diary()
    run_paper(CELLS[:1], range(2), results, ResultOrigin(), watcher=diary, simulate=Player(needed=2))
    assert diary.lines == ["2/2 mnist/fedavg/affine/W200/C0.5 1", "0", "1", "2", "-> 2"]


@pytest.mark.parametrize("asked", range(0, 26, 5))
def test_an_interrupted_run_goes_on_where_it_was(results, asked):
    player = Player(needed=5)
    first = run_paper(CELLS, range(1), results, ResultOrigin(), stopped=Stop(asked), simulate=player)
    assert (first.interrupted, first.computed + first.left) == (True, 6)
    rest = run_paper(CELLS, range(1), results, ResultOrigin(), simulate=player)
    assert (rest.interrupted, rest.present + rest.computed) == (False, 6)
    assert player.rounds_played == 6 * 5
    whole = Results(results.folder / "whole")
    run_paper(CELLS, range(1), whole, ResultOrigin(), simulate=Player(needed=5))
    assert [results.read(cell, 0).curve for cell in CELLS] == [whole.read(cell, 0).curve for cell in CELLS]  # type: ignore[union-attr]


def test_resumed_result_names_every_commit_and_processor_that_computed_it(results):
    origins = [ResultOrigin(commit=f"{letter}" * 40, processor=name) for letter, name in (("a", "H200"), ("b", "Xeon"))]
    for origin in (origins[0], origins[1], origins[1]):
        run_paper(CELLS[:1], range(1), results, origin, stopped=Stop(3), simulate=Player(needed=20))
    run_paper(CELLS[:2], range(1), results, origins[1], simulate=Player(needed=20))
    resumed, whole = (results.read(cell, 0) for cell in CELLS[:2])
    assert (resumed.processor, resumed.commit) == ("H200, then Xeon", f"{'a' * 40}, then {'b' * 40}")
    assert (whole.processor, whole.commit) == ("Xeon", "b" * 40)


def test_result_names_only_the_commit_that_began_anew_where_no_state_was_saved(results):
    results.note_progress(CELLS[0], 0, 0, ResultOrigin(commit="a" * 40, processor="H200"))
    run_paper(CELLS[:1], range(1), results, ResultOrigin(commit="b" * 40, processor="Xeon"), simulate=Player())
    found = results.read(CELLS[0], 0)
    assert (found.commit, found.processor) == ("b" * 40, "Xeon")


def test_a_summary_knows_how_far_an_interrupted_cell_is(results):
    run_paper(CELLS[:1], range(1), results, ResultOrigin(), stopped=Stop(3), simulate=Player(needed=None))
    assert (results.unfinished_seeds(CELLS[0]), results.rounds_done(CELLS[0], 0)) == ([0], 2)


def test_raised_error_loses_no_result(results):
    class Failing(Player):
        def __call__(self, study, **given):
            if len(self.studies) == 2:
                raise UsageError("no data")
            return super().__call__(study, **given)

    with pytest.raises(UsageError, match="no data"):
        run_paper(CELLS, range(1), results, ResultOrigin(), simulate=Failing())
    assert run_paper(CELLS, range(1), results, ResultOrigin(), simulate=Player()) == Sum(2, 4)


def test_training_that_diverges_does_not_keep_the_others_back(results):
    class Diverging(Player):
        def __call__(self, study, **given):
            if study.strategy == "fedadam":
                for point in points_of(study, None)[:3]:
                    given["on_point"](point)
                raise UpdateRefused("not_finite", "fc1.weight is not finite")
            return super().__call__(study, **given)

    class Reported(CellWatcher):
        def diverged(self, cell, seed, error):
            reported.append((cell.strategy, seed, error))

    reported: list[tuple] = []
    assert run_paper(CELLS, range(1), results, ResultOrigin(), watcher=Reported(), simulate=Diverging()) == Sum(
        0, 4, diverged=2
    )
    assert reported == [("fedadam", 0, "fc1.weight is not finite")] * 2
    (found, *_) = (one for one in (results.read(cell, 0) for cell in CELLS) if one is not None and one.diverged)
    assert (found.diverged, found.rounds, found.rounds_to_target) == ("fc1.weight is not finite", 2, None)
    assert set(found.versions) == {"fedpatch", "python", "torch", "numpy"}
    assert run_paper(CELLS, range(1), results, ResultOrigin(), simulate=Player()) == Sum(6, 0)


def test_a_model_that_cannot_be_measured_ends_the_run(results):
    def refusing(study, **given):
        raise UpdateRefused("not_finite", "fc1.weight is not finite")

    with pytest.raises(UpdateRefused):
        run_paper(CELLS, range(1), results, ResultOrigin(), simulate=refusing)


def test_a_damaged_result_stops_the_run_before_it_computes(results):
    run_paper(CELLS[-1:], range(1), results, ResultOrigin(), simulate=Player())
    results.table(CELLS[-1]).path.write_text("{")
    player = Player()
    with pytest.raises(UsageError, match="is damaged"):
        run_paper(CELLS, range(1), results, ResultOrigin(), simulate=player)
    assert player.studies == []


def test_cell_computed_by_another_process_is_skipped(results):
    with results.claimed(CELLS[0], 0):
        assert run_paper(CELLS, range(1), results, ResultOrigin(), simulate=Player()) == Sum(0, 5, elsewhere=1)
    assert results.read(CELLS[0], 0) is None


def test_two_runs_at_once_share_the_cells(results):
    players, sums = [Player(needed=30), Player(needed=30)], []
    runs = [
        threading.Thread(
            target=lambda player: sums.append(run_paper(CELLS, range(4), results, ResultOrigin(), simulate=player)),
            args=(player,),
        )
        for player in players
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(players[0].studies) + len(players[1].studies) == 6 * 4 == sum(one.computed for one in sums)
    assert all(results.seeds(cell) == [0, 1, 2, 3] for cell in CELLS)
