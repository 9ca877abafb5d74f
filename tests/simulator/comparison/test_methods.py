"""Methods by name, the cells of a comparison on disk, and the choice of a learning rate."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedpatch.shared.app.signals import EXIT_INTERRUPTED
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.bundled.digits import TASK as DIGITS
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.simulator.cli import app
from fedpatch.simulator.comparison.cells import TUNING_SEED, CellPlayer, ComparisonCell, TaskComparison
from fedpatch.simulator.comparison.methods import ALONE, METHODS, PUBLISHED, Method, parse_methods
from fedpatch.simulator.comparison.recommend import Arm, recommend, rows
from fedpatch.simulator.comparison.tables import TaskTable, markdown
from fedpatch.simulator.spec.study import Outcome, Point, Study

COMPARE = ["compare", "--clients", "2", "--rounds", "1", "--workers", "1", "--strategy", "fedavg"]
TERMS = {"clients": 2, "data": "", "participation": 1.0, "rounds": 1, "epochs": 1, "target_ua": None}


def comparison(**changes):
    return replace(TaskComparison("digits", DIGITS, TERMS, "fedavg", 1), **changes)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_makes_a_study_of_digits_that_fits(name):
    assert comparison().misfit(METHODS[name]) == ""


def test_options_of_a_method_are_those_of_a_run():
    (fedrep, ditto, _) = parse_methods("fedrep:2,ditto")
    assert fedrep.options() == "--private head --phases private:2,public:1"
    assert ditto.options() == "--private none --personal ditto:0.1"


def test_published_stands_for_the_eight_and_learning_alone_comes_last_and_once():
    found = parse_methods("independent,published,fedavg,ditto:0.5")
    assert [str(one) for one in found] == [*PUBLISHED, "ditto:0.5", ALONE.name]


@given(st.sampled_from([one for one in METHODS.values() if one.number]), st.floats(1e-3, 1e5))
def test_a_method_with_any_number_is_read_back_from_its_text(method, number):
    whole = method.name in ("fedrep", "fedbabu")
    chosen = replace(method, number=max(1.0, number // 1) if whole else float(f"{number:g}"))
    assert parse_methods(str(chosen))[0] == chosen


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least one"),
        ("fedavgg", "fedavg"),
        ("fedper:2", "no number"),
        ("published:2", "write published alone"),
        ("fedrep:0.5", "whole number of epochs; write fedrep:5"),
        ("fedbabu:200000", "whole number of epochs; write fedbabu:5"),
        ("ditto:x", "ditto:0.1"),
        ("ditto:-1", "above 0"),
    ],
)
def test_methods_that_cannot_be_read_are_refused_with_the_remedy(text, words):
    with pytest.raises(UsageError, match=words):
        parse_methods(text)


def fake_simulate(accuracy_of, calls):
    def simulate(study, *, on_end, saved=None, **_):
        calls.append(study)
        value = accuracy_of(study)
        on_end({0: value, 1: value})
        points = tuple(Point(place, value, value, value, 2, None, 0.1, 10, 20) for place in (0, 1))
        return Outcome(study, points, complete=True)

    return simulate


def test_rate_is_the_best_on_a_seed_that_is_not_reported_and_one_rate_costs_no_simulation():
    calls: list[Study] = []
    terms = comparison(rates=(0.1, 0.2, 0.3))
    player = CellPlayer(
        terms, terms.file(None, ""), fake_simulate(lambda s: 1 - abs(s.learning_rate - 0.2), calls), None, print, {}
    )
    assert player.tune(METHODS["fedavg"]) == 0.2
    assert [study.seed for study in calls] == [TUNING_SEED] * 3
    single = replace(terms, rates=(0.1,))
    player = CellPlayer(single, single.file(None, ""), fake_simulate(lambda _: 0.5, calls), None, print, {})
    assert player.tune(METHODS["fedavg"]) == 0.1
    assert len(calls) == 3


def test_rate_with_which_pfedme_would_step_beyond_its_copy_is_not_tried():
    terms = comparison(rates=(0.1, 2.0))
    player = CellPlayer(terms, terms.file(None, ""), fake_simulate(lambda _: 0.5, []), None, print, {})
    assert player.rates(METHODS["pfedme"]) == [0.1]
    assert "above 1" in comparison(rates=(2.0,)).misfit(METHODS["pfedme"])


@pytest.mark.medium
def test_repeated_command_computes_only_the_new_seed_and_method(tmp_path):
    first = CliRunner().invoke(app, [*COMPARE, "--methods", "fedavg", "--out", str(tmp_path)])
    assert first.exit_code == 0, first.output
    more = [*COMPARE, "--methods", "fedavg,ditto", "--seeds", "2", "--out", str(tmp_path), "--json"]
    again = CliRunner().invoke(app, more)
    assert again.exit_code == 0, again.output
    computed = [
        (line.split()[1].rstrip(":"), line[-1]) for line in again.stderr.splitlines() if line.startswith("digits, ")
    ]
    assert sorted(computed) == [("ditto", "0"), ("ditto", "1"), ("fedavg", "1"), ("independent", "1")]
    assert {path.name for path in tmp_path.iterdir()} == {
        "digits.json",
        *(f"comparison.{kind}" for kind in ("md", "svg")),
    }
    kept = CliRunner().invoke(app, more)
    assert json.loads(kept.stdout) == json.loads(again.stdout)
    assert "digits, " not in kept.stderr


def test_file_of_other_terms_is_refused_with_their_names(tmp_path):
    CliRunner().invoke(app, [*COMPARE, "--methods", "fedavg", "--out", str(tmp_path)])
    done = CliRunner().invoke(app, [*COMPARE, "--methods", "fedavg", "--epochs", "2", "--out", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "epochs" in str(done.exception)


def test_compare_adds_a_strategy_with_a_server_rate_to_an_existing_folder(tmp_path):
    """`fedadam` brings a rate of the server, which `compare` has no option for."""
    for strategy in ("fedavg", "fedadam"):
        terms = [*COMPARE, "--methods", "fedavg", "--strategy", strategy, "--out", str(tmp_path)]
        done = CliRunner().invoke(app, terms)
        assert done.exit_code == 0, done.exception or done.output
    kept = json.loads((tmp_path / "digits.json").read_text())["cells"]
    assert {one["strategy"] for one in kept} >= {"fedavg", "fedadam"}


def test_interrupted_comparison_keeps_its_cells_and_ends_with_the_code_of_interrupts(tmp_path, monkeypatch):
    played: list[Method] = []

    class Stops(CellPlayer):
        def play(self, method, rate, seed):
            if played:
                self._hooks = {**self._hooks, "stopped": lambda: True}
            played.append(method)
            return super().play(method, rate, seed)

    monkeypatch.setattr("fedpatch.simulator.comparison.cells.CellPlayer", Stops)
    done = CliRunner().invoke(app, [*COMPARE, "--methods", "fedavg,fedper", "--out", str(tmp_path)])
    assert done.exit_code == EXIT_INTERRUPTED
    assert "the same command goes on" in done.stderr
    assert len(json.loads((tmp_path / "digits.json").read_text())["cells"]) == 1


def test_several_tasks_give_a_document_each(tmp_path):
    other = "tests.simulator.comparison.test_methods:OTHER"
    done = CliRunner().invoke(app, [*COMPARE, "--methods", "none", "--task", "digits", "--task", other, "--json"])
    assert done.exit_code == 0, done.output
    assert [one["task"] for one in json.loads(done.stdout)["tasks"]] == ["digits", other]


OTHER = replace(DIGITS, name="other-digits")


@pytest.mark.parametrize("rate", ["x", "0", "-1", "inf"])
def test_learning_rate_that_is_no_number_above_zero_is_refused(rate):
    done = CliRunner().invoke(app, [*COMPARE, "--learning-rate", f"0.1,{rate}"])
    assert isinstance(done.exception, UsageError)
    assert "--learning-rate" in str(done.exception)


def arm(name, values, curve=(), num_bytes=100, options=""):
    return Arm(
        name, {(0, place): value for place, value in enumerate(values)}, 2, num_bytes, 40, {0: curve}, 0.1, options
    )


def test_rounds_to_target_are_to_the_accuracy_of_learning_alone_unless_another_is_given():
    arms = [arm("ditto", [0.9, 0.9], (0.1, 0.6, 0.9)), arm(ALONE.name, [0.5, 0.6], (0.1, 0.3, 0.55))]
    assert [row.rounds_to_target for row in rows(arms, MetricTerms())] == [1, 2]
    assert [row.rounds_to_target for row in rows(arms, MetricTerms(), 0.9)] == [2, None]


def test_of_methods_that_are_equal_the_one_with_the_fewest_bytes_is_recommended_with_its_options():
    arms = [arm("ditto", [0.9, 0.8]), arm("fedper", [0.8, 0.9], (), 50, "--private head"), arm(ALONE.name, [0.1, 0.2])]
    choice, sentence = recommend(arms, MetricTerms())
    assert choice == "fedper"
    assert sentence.startswith("take --private head: ")


def test_table_has_a_row_for_each_method_with_bytes_of_one_seed():
    arms = [arm("ditto", [0.9, 0.9], (0.1, 0.6, 0.9)), arm(ALONE.name, [0.5, 0.6], (0.1, 0.3, 0.55))]
    text = markdown([TaskTable("digits", 2, MetricTerms(), rows(arms, MetricTerms()))], None)
    assert "| ditto | 0.900 | 0.900 | 100% | 1 | 20 B | 30 B | 0.1 |" in text


def test_comparison_in_which_no_method_fits_is_refused():
    done = CliRunner().invoke(app, [*COMPARE, "--methods", "pfedme:100"])
    assert isinstance(done.exception, UsageError)
    assert "task 'digits': no method fits" in str(done.exception)
    assert "pfedme:100: left out: personal: LAMBDA = 100" in done.stderr


def test_comparison_in_which_each_method_diverged_recommends_learning_alone():
    choice, sentence = recommend([Arm(ALONE.name, {(0, 0): 0.5}, 1, 0)], MetricTerms())
    assert (choice, sentence) == (ALONE.name, "no method is left to compare with learning alone")


def test_cell_whose_training_diverged_leaves_its_method_out(monkeypatch):
    def play(self, method, rate, seed):
        if method.name == "fedper":
            return ComparisonCell(method.options(), "fedavg", 0.1, seed, {}, [], broken="values became infinite")
        return ComparisonCell(method.options(), "fedavg", 0.1, seed, {"0": 0.5, "1": 0.6}, [0.1, 0.5])

    monkeypatch.setattr(CellPlayer, "play", play)
    done = CliRunner().invoke(app, [*COMPARE, "--methods", "fedavg,fedper", "--json"])
    assert done.exit_code == 0, done.output
    assert "fedper: left out: training diverged with seed 0: values became infinite" in done.stderr
    assert [row["policy"] for row in json.loads(done.stdout)["rows"]] == ["fedavg", "independent"]
