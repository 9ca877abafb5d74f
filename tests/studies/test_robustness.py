"""The table of rules and attacks: its plan, file and rows, and the command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.app.command import run_app
from fedpatch.shared.errors import UpdateRefused, UsageError
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import Point
from studies.robustness.__main__ import app, robustness
from studies.robustness.table import (
    NO_ATTACK,
    RobustnessCell,
    RobustnessFile,
    markdown_tables,
    parse_defence,
    plan_table,
    play_cell,
    summarise,
)
from tests.simulator.studies import study_of
from tests.support.programs import Program


def cell(defence="mean", attack="sign:4", bad=0.2, seed=0, accuracy=0.5, **terms) -> RobustnessCell:
    return RobustnessCell(defence, attack, bad, seed, accuracy, accuracy / 2, **terms)


@given(st.integers(1, 4), st.permutations(["sign", "ipm:2", "copy"]), st.permutations(["mean", "centred/auto:2"]))
def test_plan_has_each_combination_once_and_seed_by_seed(seeds, attacks, rules):
    planned = plan_table(rules, attacks, [0.1, 0.2], seeds)
    assert len(planned) == len(set(planned)) == seeds * len(rules) * (1 + 2 * len(attacks))
    assert [key[3] for key in planned] == sorted(key[3] for key in planned)


def test_plan_without_attack_has_one_case():
    assert plan_table(["mean"], [NO_ATTACK], [0.2], 2) == [("mean", NO_ATTACK, 0.0, 0), ("mean", NO_ATTACK, 0.0, 1)]


@pytest.mark.parametrize(
    ("rules", "attacks", "bad"),
    [(["krum"], ["sign"], 0.2), (["mean/2"], ["sign"], 0.2), (["mean"], ["sin"], 0.2), (["mean"], ["sign"], 0.0)],
)
def test_plan_refuses_terms_that_cannot_be_played(rules, attacks, bad):
    with pytest.raises(UsageError):
        plan_table(rules, attacks, [bad], 1)


@pytest.mark.parametrize("text", ["mean", "centred/auto:2", "trimmed:0.2/clip:3"])
def test_defence_survives_its_text(text):
    assert str(parse_defence(text)) == text


def play(key, **terms):
    study = study_of("fedavg", "affine", participation=1.0, rounds=2)
    return play_cell(study, key, simulate, workers=1, root=None, stopped=lambda: False, **terms)


def test_cell_without_attack_counts_all_clients_and_with_one_the_honest():
    plain, attacked = play(("centred", NO_ATTACK, 0.0, 0)), play(("centred", "sign:4", 0.3, 0))
    assert plain.found is None
    assert 0 <= attacked.found <= 1
    assert 0 <= attacked.p10 <= attacked.user_accuracy <= 1
    assert play(("centred", "sign:4", 0.3, 0)) == attacked


@pytest.mark.parametrize(
    ("strategy", "rules", "attacks", "complaint"),
    [
        ("scaffold", "mean", "sign:4", "--attack: scaffold keeps control variates"),
        ("scaffold", "mean,mean/auto:2", NO_ATTACK, "mean/auto:2 with .*--norm-bound: scaffold keeps control variates"),
        ("independent", "mean", "sign:4", "--attack: no rule protects independent"),
    ],
)
def test_cells_that_a_study_of_its_own_refuses_are_refused_before_any_is_simulated(
    strategy, rules, attacks, complaint, tmp_path
):
    out = tmp_path / "table.json"
    with pytest.raises(UsageError, match=complaint):
        robustness(strategy=strategy, rules=rules, attacks=attacks, private="none", rounds=1, workers=1, out=out)
    assert not out.exists()


@pytest.mark.parametrize("attacks", ["sign:4", NO_ATTACK])
def test_policy_that_federates_nothing_is_refused_before_any_cell_is_simulated(attacks, tmp_path):
    out = tmp_path / "table.json"
    with pytest.raises(UsageError, match=r"--private names:\* leaves nothing to federate"):
        robustness(private="names:*", attacks=attacks, rules="mean", clients=4, rounds=1, workers=1, out=out)
    assert not out.exists()


def test_interrupted_cell_gives_nothing():
    study = study_of("fedavg", "affine")
    key = ("mean", NO_ATTACK, 0.0, 0)
    assert play_cell(study, key, simulate, workers=1, root=None, stopped=lambda: True) is None


def test_cell_whose_model_breaks_keeps_the_last_figures_and_the_reason():
    def breaks(study, *, on_point, **_):
        on_point(Point(0, 0.4, 0.2, 0.1, 3, None, 0.0))
        raise UpdateRefused("not_finite", "values became infinite")

    study = study_of()
    broken = play_cell(study, ("mean", "sign:4", 0.2, 1), breaks, workers=1, root=None, stopped=lambda: False)
    assert broken == RobustnessCell("mean", "sign:4", 0.2, 1, 0.4, 0.2, broken="values became infinite")


def test_file_goes_on_with_its_cells(tmp_path):
    path, study = tmp_path / "deep" / "table.json", study_of()
    RobustnessFile(path, study).add(cell())
    again = RobustnessFile(path, replace(study, seed=9))
    assert again.cells == {cell().key: cell()}
    again.add(cell(seed=1))
    assert len(json.loads(path.read_text())["cells"]) == 2


def test_two_processes_with_one_file_keep_the_cells_of_both(tmp_path):
    path, study = tmp_path / "table.json", study_of()
    first, second = RobustnessFile(path, study), RobustnessFile(path, study)
    first.add(cell(seed=0))
    second.add(cell(seed=1))
    first.add(cell(seed=2))
    keys = [cell(seed=seed).key for seed in range(3)]
    assert list(first.cells) == list(RobustnessFile(path, study).cells) == keys


def test_cell_is_not_added_to_a_file_that_got_other_terms_meanwhile(tmp_path):
    path = tmp_path / "table.json"
    late = RobustnessFile(path, study_of())
    RobustnessFile(path, replace(study_of(), rounds=99)).add(cell())
    before = path.read_text()
    with pytest.raises(UsageError, match="rounds"):
        late.add(cell())
    assert path.read_text() == before


CELL_OF_WORDS = json.dumps({**asdict(cell()), "user_accuracy": "high"})


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"terms": {}, "cells": [{"rule": 1}]}', '{"terms": [1], "cells": []}']
    + [f'{{"terms": {{}}, "cells": [{one}]}}' for one in (CELL_OF_WORDS, "1")],
)
def test_file_that_is_no_table_is_refused_and_kept(content, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="choose another --out"):
        RobustnessFile(path, study_of())
    assert path.read_text() == content


def test_damaged_cell_is_named_with_its_place(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(f'{{"terms": {{}}, "cells": [{json.dumps(asdict(cell()))}, {CELL_OF_WORDS}]}}')
    with pytest.raises(UsageError, match=r"table.json.*cell 2.*user_accuracy"):
        RobustnessFile(path, study_of())


def test_file_of_other_terms_is_refused_with_their_names(tmp_path):
    path = tmp_path / "table.json"
    RobustnessFile(path, study_of()).add(cell())
    with pytest.raises(UsageError, match="rounds"):
        RobustnessFile(path, replace(study_of(), rounds=99))


def test_rows_are_means_over_seeds():
    cells = [cell(seed=0, accuracy=0.4, found=0.5), cell(seed=1, accuracy=0.6), cell("centred", broken="x")]
    first, second = summarise(cells)
    assert (first.seeds, first.user_accuracy, first.p10, first.found, first.broken) == (2, 0.5, 0.25, 0.5, 0)
    assert first.spread == pytest.approx(0.02**0.5)
    assert (second.defence, second.spread, second.broken) == ("centred", 0.0, 1)


def test_tables_have_a_column_for_each_attack_and_a_gap_where_a_cell_is_missing():
    cells = [cell(attack=NO_ATTACK, bad=0.0), cell(), cell("centred", backdoor_success=0.25), cell(bad=0.1)]
    text = "\n".join(markdown_tables(summarise(cells)))
    assert "| rule | none | sign:4 |" in text
    assert "| `centred` | - | 0.500 (0.250), success 25% |" in text
    assert text.index("10% bad") < text.index("20% bad")


def test_tables_without_attack_have_the_figures_of_each_rule():
    cells = [cell(attack=NO_ATTACK, bad=0.0), cell("centred", attack=NO_ATTACK, bad=0.0, accuracy=0.75)]
    assert markdown_tables(summarise(cells)) == [
        "0% bad devices:",
        "",
        "| rule | none |",
        "|---|---|",
        "| `mean` | 0.500 (0.250) |",
        "| `centred` | 0.750 (0.375) |",
        "",
    ]


@pytest.mark.medium
def test_command_prints_the_table_and_computes_only_what_is_missing(tmp_path, monkeypatch, capsys):
    program = Program(lambda: run_app(app, "robustness"), monkeypatch, capsys)
    out = tmp_path / "table.json"
    terms = ["--clients", 4, "--rounds", 1, "--rules", "mean,centred", "--bad", 0.25, "--workers", 1, "--out", out]
    program(*terms, "--attacks", "sign")
    more = program(*terms, "--attacks", "sign,ipm")
    assert "2 of 2" in more.err
    assert "| rule | none | sign:4 | ipm:2 |" in more.out
    assert len(json.loads(out.read_text())["cells"]) == 6
