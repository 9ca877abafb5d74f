"""The command `python -m studies.paper`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpatch.shared.app.command import run_app
from fedpatch.shared.errors import UpdateRefused
from studies.paper.__main__ import NAME, app
from studies.paper.experiments import select_cells
from studies.paper.results import Results, measurements
from tests.studies.fake_simulation import Player, points_of, result
from tests.support.programs import Ended, Program

CURVES = {"train": [0.1] * 6, "test": [0.2] * 6}
TWO_CELLS = ("table2", "--cells", "mnist/fedavg/affine/W200/*")


@pytest.fixture
def player(monkeypatch) -> Player:
    """A fake that replaces the simulator; every cell takes 21 rounds."""
    player = Player(needed=21)
    monkeypatch.setitem(sys.modules, "fedpatch.simulator.experiment.simulation", SimpleNamespace(simulate=player))
    return player


@pytest.fixture
def program(monkeypatch, capsys, player, tmp_path: Path) -> Callable[..., Ended]:
    """The program, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return Program(lambda: run_app(app, NAME), monkeypatch, capsys)


def test_cells_are_computed_and_compared(program, player):
    ended = program(*TWO_CELLS, "--seeds", 2)
    assert (ended.code, len(player.studies)) == (0, 4)
    assert ended.out.splitlines()[:5] == [
        "MNIST",
        "strategy  private  W=200 C=0.5  W=200 C=1.0",
        "fedavg    affine      21 / 29*      21 / 21",
        "",
        "2 of 2 cells finished; 1 of 2 within 20 % or 3 rounds of the paper's.",
    ]
    lines = ended.err.splitlines()
    assert "1 of 4: table2/mnist/fedavg/affine/W200/C0.5, seed 0" in lines
    assert "table2/mnist/fedavg/affine/W200/C1.0, seed 1: 21 rounds, the paper 21, 5.5 s" in lines
    assert lines[-1] == "computed 4"


def test_existing_results_are_not_computed_again(program, player):
    first = program(*TWO_CELLS)
    second = program(*TWO_CELLS)
    assert (second.code, second.out, len(player.studies)) == (0, first.out, 2)
    assert second.err == "computed 0, 2 there before\n"


def test_check_computes_recorded_cells_again_and_fails_where_one_is_outside_the_spread(program, player, tmp_path):
    """New results are stored beside the recorded ones, by processor; recorded results stay unchanged."""
    cell = ("--cells", "table2/mnist/fedavg/affine/W200/C1.0")
    program("table2", "--cells", "mnist/fedavg/affine/W200/C1.0")
    ended = program("check", *cell)
    assert (ended.code, ended.out.splitlines()) == (
        0,
        [
            "table2/mnist/fedavg/affine/W200/C1.0, seed 0: recorded 21 rounds, again 21 rounds "
            "(user accuracy differs by at most 0.0000): same bits"
        ],
    )
    (recorded,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")
    Results(tmp_path / "results").write(recorded, 0, result(recorded, 0, 40))
    ended = program("check", *cell, "--json")
    (one,) = json.loads(ended.out)["cells"]
    assert (ended.code, one["verdict"], one["recorded"]["rounds_to_target"]) == (1, "outside", 40)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_summary_of_a_check_without_new_results_of_this_processor_is_refused(program, player, form):
    cell = ("--cells", "table2/mnist/fedavg/affine/W200/C1.0")
    program("table2", "--cells", "mnist/fedavg/affine/W200/C1.0")
    ended = program("check", *cell, "--summary", *form)
    assert (ended.code, ended.out, len(player.studies)) == (2, "", 1)
    assert "1 of 1 results are not in results/rechecks/" in ended.err
    program("check", *cell)
    assert program("check", *cell, "--summary", *form).code == 0
    ended = program("check", *cell, "--summary", "--seeds", 2, *form)
    assert (ended.code, "seed 1 has no result in results to compare with" in ended.err) == (2, True)


def test_tuned_cells_are_computed_after_their_trials(program, player):
    ended = program("tuned", "--cells", "mnist/fedavg-adam/affine/W400/C1.0")
    assert (ended.code, len(player.studies)) == (0, 5)
    assert "21 / 9*" in ended.out
    assert {one.learning_rate for one in player.studies} == {0.001, 0.003, 0.01, 0.03}


@pytest.mark.parametrize("clients", [200, 400])
@pytest.mark.parametrize("split", ["aligned", "even"])
def test_cells_of_a_split_have_this_split(program, player, split, clients):
    program(split, "--cells", f"mnist/fedavg/all/W{clients}/C1.0")
    (study,) = player.studies
    assert study.data.startswith(f"{split}:")


def test_a_summary_computes_nothing(program, player, tmp_path):
    ended = program("table2", "--summary", "--results", "none")
    assert (ended.code, ended.err, player.studies, (tmp_path / "none").exists()) == (0, "", [], False)
    assert "0 of 96 cells finished" in ended.out
    (cell,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")
    for seed in (3, 8):
        Results(tmp_path / "some").write(cell, seed, result(cell, seed, 20 + seed))
    assert "25.5 (23-28) / 21*" in program("table2", "--summary", "--results", "some").out


def test_json_is_one_document(program):
    values = json.loads(program(*TWO_CELLS, "--json").out)
    assert [(one["cell"], one["mean_rounds_to_target"]) for one in values["cells"]] == [
        ("table2/mnist/fedavg/affine/W200/C0.5", 21.0),
        ("table2/mnist/fedavg/affine/W200/C1.0", 21.0),
    ]


def test_markdown_is_for_a_page(program):
    assert program(*TWO_CELLS, "--markdown").out.startswith("### MNIST\n\n| strategy | private | W=200 C=0.5 |")


def test_the_command_that_was_given_is_kept(program, tmp_path):
    program(*TWO_CELLS)
    (cell,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")
    kept = Results(tmp_path / "results").read(cell, 0)
    assert kept is not None
    assert kept.command == "python -m studies.paper table2 --cells 'mnist/fedavg/affine/W200/*'"


def test_an_interrupted_command_goes_on_when_it_is_given_again(program, player, monkeypatch):
    def interrupting(study, *, on_point, **given):
        def interrupt(point):
            on_point(point)
            if point.round == 5:
                os.kill(os.getpid(), signal.SIGINT)

        return player(study, on_point=interrupt, **given)

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fedpatch.simulator.experiment.simulation", SimpleNamespace(simulate=interrupting))
        ended = program(*TWO_CELLS)
    assert (ended.code, player.rounds_played) == (130, 5)
    assert ended.err.endswith(
        "computed 0, 2 left\nto go on, give the same command again: it takes up what is in results/.unfinished\n"
    )
    assert ">5 / 21" in ended.out or ">5 / 29" in ended.out
    ended = program(*TWO_CELLS)
    assert (ended.code, player.rounds_played) == (0, 42)


def test_diverged_training_is_reported(program, monkeypatch):
    def diverging(study, **given):
        given["on_point"](points_of(study, None)[0])
        raise UpdateRefused("not_finite", "fc1.weight is not finite")

    monkeypatch.setitem(
        sys.modules, "fedpatch.simulator.experiment.simulation", SimpleNamespace(simulate=diverging, versions=dict)
    )
    ended = program(*TWO_CELLS)
    assert (ended.code, ended.err.splitlines()[-1]) == (0, "computed 0, 2 diverged")
    assert "seed 0: training diverged: fc1.weight is not finite" in ended.err
    assert "2 of 2 cells finished" in ended.out
    assert "div. / 21" in ended.out
    summary = json.loads(program(*TWO_CELLS, "--summary", "--json").out)
    assert [(one["diverged"], one["rounds_to_target"]) for one in summary["cells"]] == [(1, [None])] * 2
    checked = program("check", "--cells", "table2/mnist/fedavg/affine/W200/C1.0")
    assert (checked.code, "recorded div., again div." in checked.out) == (0, True)


def test_a_result_names_the_processor_of_its_device_and_check_compares_by_it(program, tmp_path, monkeypatch):
    monkeypatch.setattr("studies.paper.__main__.name_processor", {"cpu": "EPYC", "cuda": "H200"}.__getitem__)
    cell = "mnist/fedavg/affine/W200/C1.0"
    for device in ("cuda", "cpu"):
        program("table2", "--cells", cell, "--device", device)
    assert program("check", "--cells", f"table2/{cell}", "--device", "cuda").code == 0
    (recorded,) = select_cells("table2", cell)
    for store in (Results(tmp_path / "results"), Results(tmp_path / "results" / "rechecks" / "h200")):
        found = store.read(recorded, 0)
        assert found is not None
        assert (found.processor, found.device) == ("H200", "cuda")


def test_cell_locked_by_another_process_is_reported(program, tmp_path):
    (cell,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")
    with Results(tmp_path / "results").claimed(cell, 0):
        ended = program(*TWO_CELLS)
    assert (ended.code, ended.err.splitlines()[-1]) == (0, "computed 1, 1 taken by another process")


@pytest.mark.medium
def test_fig_5_is_drawn(program, tmp_path):
    ended = program("fig5", "--cells", "mnist/*/W200/C1.0")
    assert ended.code == 0
    assert "fig5/mnist/pfedme/none/W200/C1.0, seed 0: user accuracy 0.970 after 200 rounds, 50 s" in ended.err
    assert (tmp_path / "results" / "fig5.svg").stat().st_size > 5_000
    assert ended.err.splitlines()[-1] == "drawn: results/fig5.svg"


@pytest.mark.medium
def test_fig_5_shows_all_computed_cells_where_only_some_are_chosen(program, tmp_path):
    for cell in select_cells("fig5", "mnist/fedavg/affine/*"):
        Results(tmp_path / "results").write(cell, 0, result(cell, 0, None))
    ended = program("fig5", "--cells", "mnist/fedavg/affine/W200/C1.0", "--summary")
    assert (ended.code, "1 of 1 cells finished" in ended.out) == (0, True)
    assert "not computed yet" not in (tmp_path / "results" / "fig5.svg").read_text()


FIG_4 = {
    "seed": 0,
    "policies": dict.fromkeys(("none", "stats", "affine", "all"), CURVES),
    "steps_per_round": 2,
    "rounds": 2,
}


@pytest.mark.medium
@pytest.mark.parametrize("way", [(), ("--summary",)])
def test_fig_4_is_measured_and_drawn(program, monkeypatch, tmp_path, way):
    asked = []

    def run_fig4(results_dir, seed, rounds, on_progress, origin):
        assert {"command", "commit", "processor"} == set(origin)
        asked.append((results_dir, seed, rounds))
        on_progress("round 1")
        return FIG_4

    monkeypatch.setitem(sys.modules, "studies.paper.inspection", SimpleNamespace(run_fig3=None, run_fig4=run_fig4))
    measurements(tmp_path / "results", "fig4").put(FIG_4)
    ended = program("fig4", *(way or ("--rounds", 2)))
    pictures = ["results/fig4.svg"]
    assert (ended.code, ended.out.splitlines()) == (0, pictures)
    assert all((tmp_path / path).exists() for path in pictures)
    assert asked == ([] if way else [(Path("results"), 0, 2)])
    assert ended.err == ("" if way else "round 1\n")


@pytest.mark.medium
def test_summary_of_fig_4_draws_the_band_of_all_seeds_that_are_there(program, tmp_path):
    for seed in (0, 3):
        measurements(tmp_path / "results", "fig4").put({**FIG_4, "seed": seed})
    assert program("fig4", "--summary").code == 0
    assert "FillBetweenPolyCollection" in (tmp_path / "results" / "fig4.svg").read_text()


def test_seeds_with_other_numbers_of_rounds_are_not_drawn_together(program, tmp_path):
    for seed, rounds in ((0, 2), (1, 600)):
        measurements(tmp_path / "results", "fig4").put({**FIG_4, "seed": seed, "rounds": rounds})
    ended = program("fig4", "--summary")
    assert ended.code == 2
    assert "the seeds of fig4 have other numbers of rounds; measure them again with one --rounds" in ended.err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("tabel2",), "unknown table or figure 'tabel2'; did you mean 'table2'?"),
        (("table2", "--cells", "mnst/*"), "--cells 'mnst/*' matches no cell of table2; did you mean 'mnist/*'?"),
        (("table2", "--device", "gpu"), "unknown device 'gpu'"),
        (("table2", "--json", "--markdown"), "--markdown and --json"),
        (("table2", "--seeds", 0), "--seeds"),
        (("table2", "--workers", 0), "--workers"),
        (("fig4", "--cells", "mnist/*"), "leave out --cells"),
        (("fig3", "--workers", 2, "--rounds", 1), "fig3 is a measurement by one process"),
        (("tuning", "--seeds", 2), "--seeds: the trials of tuning have the seed 1000 alone"),
        (("table2", "--rounds", 9), "it is for fig3 and fig4"),
        (("fig3", "--summary"), "results/fig3.jsonl has no seed 0 yet; leave out --summary to measure it"),
        (("table2", "--summary", "--seeds", 5, "--workers", 2), "leave out --seeds and --workers"),
        (("fig4", "--summary", "--rounds", 2), "leave out --rounds"),
        (("fig5", "--summary", "--device", "cuda"), "leave out --device"),
        (("check", "--cells", "fig5/mnist"), "unknown table 'fig5'"),
        ((), "Missing argument 'WHICH'"),
    ],
)
def test_wrong_usage_prints_one_sentence_and_exits_with_2(program, player, given, words):
    ended = program(*given)
    assert (ended.code, player.studies) == (2, [])
    assert words in ended.err


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ("{", "results/fig4.jsonl, line 1 is damaged"),
        (
            json.dumps({"seed": 0, "policies": dict.fromkeys(("none", "stats"), CURVES), "steps_per_round": 2}),
            "fig4, seed 0: 'affine' is not measured yet; the same command without --summary goes on",
        ),
    ],
)
def test_summary_of_a_damaged_or_unfinished_measurement_is_refused(program, tmp_path, kept, words):
    path = tmp_path / "results" / "fig4.jsonl"
    path.parent.mkdir()
    path.write_text(kept)
    ended = program("fig4", "--summary")
    assert ended.code == 2
    assert words in ended.err
