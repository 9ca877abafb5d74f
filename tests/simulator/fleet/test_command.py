"""`fedpatch simulate fleet`: tables for people, JSON for programs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedpatch.shared.app.command import command, make_app
from fedpatch.shared.errors import UsageError
from fedpatch.simulator.fleet.command import fleet

SMALL = ["--devices", "12", "--participation", "0.5", "--rounds", "2"]


def fleet_command(*arguments: str) -> str:
    """The command's output on stdout."""
    app = make_app("fedpatch", "A command line.")
    command(app, "fleet", example="fedpatch simulate fleet")(fleet)
    result = CliRunner().invoke(app, ["fleet", *SMALL, *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_study_prints_its_rounds():
    lines = fleet_command().splitlines()
    assert lines[0].split()[:4] == ["round", "outcome", "time", "asked"]
    assert [line.split()[0] for line in lines[1:3]] == ["1", "2"]
    assert lines[3].startswith("2 rounds, 0 failed; median ")
    assert "simulated in" in lines[-1]


def test_a_study_is_json_for_programs():
    report = json.loads(fleet_command("--json"))
    assert (report["terms"]["devices"], len(report["rounds"]), report["totals"]["rounds"]) == (12, 2, 2)
    assert report["stopped_because"] == "max_rounds"


def test_a_comparison_prints_a_row_for_each_policy():
    header, *rows = fleet_command("--compare", "over_select=1,1.5", "--compare", "quorum=0.5,0.9").splitlines()
    assert header.split()[:4] == ["over_select", "quorum", "rounds", "failed"]
    assert [tuple(row.split()[:2]) for row in rows] == [("1.0", "0.5"), ("1.0", "0.9"), ("1.5", "0.5"), ("1.5", "0.9")]


def test_a_comparison_is_json_for_programs():
    found = json.loads(fleet_command("--json", "--compare", "deadline_s=30,60"))
    assert [one["changes"] for one in found["policies"]] == [{"deadline_s": 30.0}, {"deadline_s": 60.0}]
    assert found["terms"]["quorum"] == 0.8


def test_a_term_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="did you mean 'deadline_s'"):
        fleet_command("--compare", "deadlin_s=1")
