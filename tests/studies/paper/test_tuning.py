"""Learning rates from a grid: the trials, the choice, and the cell that is computed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.simulator.spec.study import Study
from studies.paper.comparison import compare, markdown
from studies.paper.experiments import (
    RATE_GRID,
    TUNING_SEED,
    Cell,
    rate_cells,
    select_cells,
    table2_rates,
)
from studies.paper.results import ResultOrigin, Results
from studies.paper.runner import Sum, run_paper
from studies.paper.tuning import choose_rates, run_tuned
from tests.studies.fake_simulation import Player, diverged_result, result

(CELL,) = select_cells("tuned", "mnist/fedadam/affine/W400/C1.0")  # 27 in the paper
TRIALS = rate_cells(CELL)
BEST = TRIALS[5]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


class RateDependentPlayer(Player):
    """A simulation that needs fewer rounds with the rates of one trial."""

    def __init__(self, best: Cell = BEST) -> None:
        super().__init__()
        self._best = best.rates

    def __call__(self, study: Study, **options):
        rates = (study.learning_rate, study.server_learning_rate)
        self._needed = 9 if rates == self._best else 12
        return super().__call__(study, **options)


def test_trials_have_each_rate_of_the_grid_and_end_where_a_rate_is_worse_than_the_papers():
    assert [one.rates for one in TRIALS] == list(RATE_GRID["fedadam"])
    assert {one.max_rounds for one in TRIALS} == {34}  # ceil(1.25 * 27)
    assert len({one.name for one in TRIALS}) == len(TRIALS)


def test_run_tuned_computes_the_cell_with_the_rates_that_need_the_fewest_rounds(results):
    player = RateDependentPlayer()
    done = run_tuned([CELL], range(2), results, ResultOrigin(), simulate=player)
    assert done == Sum(present=0, computed=len(TRIALS) + 2)
    assert {one.seed for one in player.studies[: len(TRIALS)]} == {TUNING_SEED}
    chosen = choose_rates(CELL, results)
    assert chosen.rates == BEST.rates
    assert [results.read(chosen, seed).rounds_to_target for seed in range(2)] == [9, 9]
    assert results.table(chosen).keys == [("tuned/mnist/fedadam/affine/W400/C1.0", seed) for seed in range(2)]


def test_run_tuned_takes_the_cell_of_table_2_if_its_rates_are_the_best(results):
    (table_2,) = select_cells("table2", CELL.short_name)
    (published,) = (one for one in TRIALS if one.rates == table2_rates(table_2))
    run_paper([table_2], range(1), results, ResultOrigin(), simulate=Player(9))
    player = RateDependentPlayer(published)
    assert run_tuned([CELL], range(2), results, ResultOrigin(), simulate=player) == Sum(1, len(TRIALS) + 1)
    assert choose_rates(CELL, results) == table_2
    assert results.seeds(table_2) == [0, 1]
    assert results.seeds(CELL) == []


def test_run_tuned_again_computes_nothing(results):
    run_tuned([CELL], range(1), results, ResultOrigin(), simulate=RateDependentPlayer())
    player = RateDependentPlayer()
    assert run_tuned([CELL], range(1), results, ResultOrigin(), simulate=player).computed == 0
    assert player.studies == []


def test_run_tuned_after_an_interruption_of_a_trial_leaves_the_cell_uncomputed(results):
    rounds_left = iter([False] * 20)
    done = run_tuned(
        [CELL],
        range(1),
        results,
        ResultOrigin(),
        stopped=lambda: next(rounds_left, True),
        simulate=RateDependentPlayer(),
    )
    assert done.interrupted
    assert results.seeds(CELL) == []


def test_choose_rates_without_a_trial_that_reaches_the_target_takes_the_highest_user_accuracy(results):
    assert choose_rates(CELL, results) == CELL
    for trial in TRIALS[:2]:
        results.write(trial, TUNING_SEED, result(trial, TUNING_SEED, None))
    assert choose_rates(CELL, results).rates == TRIALS[0].rates
    results.write(TRIALS[2], TUNING_SEED, result(TRIALS[2], TUNING_SEED, 30))
    assert choose_rates(CELL, results).rates == TRIALS[2].rates


def test_choose_rates_leaves_out_rates_with_which_training_diverges(results):
    results.write(TRIALS[0], TUNING_SEED, diverged_result(TRIALS[0], TUNING_SEED, 30))
    assert choose_rates(CELL, results) == CELL
    results.write(TRIALS[1], TUNING_SEED, result(TRIALS[1], TUNING_SEED, None))
    assert choose_rates(CELL, results).rates == TRIALS[1].rates


def test_run_tuned_with_trials_that_all_diverge_leaves_the_cell_uncomputed(results):
    for trial in TRIALS:
        results.write(trial, TUNING_SEED, diverged_result(trial, TUNING_SEED, 0))
    assert run_tuned([CELL], range(1), results, ResultOrigin(), simulate=Player()) == Sum(len(TRIALS), 0)


def test_a_trial_of_the_grid_is_a_cell_with_its_rates_in_its_name(results):
    (trial,) = select_cells("tuning", "mnist/fedadam/affine/W400/C1.0/rate0.1-server0.01")
    assert trial.rates == (0.1, 0.01)
    assert trial in TRIALS
    run_paper([trial], (TUNING_SEED,), results, ResultOrigin(), simulate=Player())
    comparison = compare(results, [trial])
    assert "| fedadam rate0.1-server0.01 | affine | 3 / 27" in markdown(comparison)
