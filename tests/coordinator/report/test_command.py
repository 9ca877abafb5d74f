"""`fedpatch report` on the command line, with all kinds of registries."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from tests.coordinator.registry_builders import new_run
from tests.coordinator.report.report_runs import record
from tests.support.programs import Ended, Program

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def fedpatch(fedpatch: Program, monkeypatch, tmp_path_factory) -> Program:
    """The command line in an empty directory."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    return fedpatch


def _run(state_dir: Path, rounds: int, because: str | None = "max_rounds", **settings: object) -> str:
    with Registry(state_dir / REGISTRY_FILE) as registry:
        made = new_run(registry, 1.0e9, private="affine", settings=settings).id
        for number in range(1, rounds + 1):
            registry.rounds.finish(made, record(number))
        if because is not None:
            registry.finish_run(made, stopped_because=because, user_accuracy=0.5, model=None)
    return made


def test_report_is_named_after_the_run(fedpatch, tmp_path):
    made = _run(tmp_path, 3)
    ended = fedpatch("report", "last", "--state-dir", tmp_path)
    place = Path.cwd() / f"{made}.html"
    assert ended == Ended(0, f"report: {place}\n", "")
    assert made in place.read_text("utf-8")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("because", "words"),
    [
        (None, "running"),
        ("interrupted", "interrupted"),
        ("failed", "failed"),
        ("target_ua", r"finished \(target reached\)"),
    ],
)
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_run_with_any_end_has_a_report(fedpatch, tmp_path, because, words, rounds):
    _run(tmp_path, rounds, because)
    assert fedpatch("report", "last", "--state-dir", tmp_path, "--out", "a.html").code == 0
    assert re.search(rf"UTC: {words}</p>", Path("a.html").read_text("utf-8"))


@pytest.mark.medium
def test_json_names_the_files_and_the_result_of_each_run(fedpatch, tmp_path):
    first, second = (_run(tmp_path, rounds, target_ua=0.5) for rounds in (1, 4))
    argv = ("report", first, second, "last", "--state-dir", tmp_path, "--csv", "a.csv", "--png", "a.png", "--json")
    document = json.loads(fedpatch(*argv).out)
    here = Path.cwd()
    assert document["report"] == str(here / f"{first}-and-1-more.html")
    assert [document["csv"], document["png"]] == [str(here / "a.csv"), str(here / "a.png")]
    assert [(one["run"], one["rounds"], one["rounds_to_target"]) for one in document["runs"]] == [
        (first, 1, None),
        (second, 4, 1),
    ]
    assert Path("a.png").read_bytes().startswith(PNG)
    assert len(Path("a.csv").read_text("utf-8").splitlines()) == 1 + 5
    assert "The runs compared" in Path(document["report"]).read_text("utf-8")


def test_png_of_a_run_without_rounds_is_written(fedpatch, tmp_path):
    _run(tmp_path, 0, None)
    assert fedpatch("report", "last", "--state-dir", tmp_path, "--png", "a.png").code == 0
    assert Path("a.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_report_without_its_packages_is_a_usage_error(fedpatch, tmp_path, monkeypatch, package):
    _run(tmp_path, 1)
    for name in ("charts", "page", "load"):
        monkeypatch.delitem(sys.modules, f"fedpatch.coordinator.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    ended = fedpatch("report", "last", "--state-dir", tmp_path)
    assert (ended.code, list(Path.cwd().iterdir())) == (2, [])
    assert package in ended.err and "pip install 'fedpatch[coordinator]'" in ended.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--out", "registry.sqlite3"), "must end in .html"),
        (("--csv", "a.html"), "must end in .csv"),
        (("--png", "a.jpg"), "must end in .png"),
        (("--out", "no/where.html"), "there is no directory no"),
        (("--out", "folder.html"), "is a directory"),
    ],
)
def test_output_name_with_another_ending_is_refused(fedpatch, tmp_path, argv, words):
    _run(tmp_path, 1)
    Path("folder.html").mkdir()
    ended = fedpatch("report", "last", "--state-dir", tmp_path, *argv)
    assert (ended.code, ended.out, len(list(Path.cwd().iterdir()))) == (2, "", 1)
    assert words in ended.err and argv[0] in ended.err


@pytest.mark.medium
def test_unknown_run_or_too_many_are_usage_errors(fedpatch, tmp_path):
    ids = [_run(tmp_path, 0) for _ in range(13)]
    for argv, words in (((ids[0], "1999"), "'1999'"), (ids, "at most 12")):
        ended = fedpatch("report", *argv, "--state-dir", tmp_path)
        assert ended.code == 2 and words in ended.err
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.medium
def test_secret_in_a_registry_is_not_shown(fedpatch, tmp_path):
    _run(tmp_path, 1, password="hunter2", fleet="kitchen")
    argv = ("report", "last", "--state-dir", tmp_path, "--out", "a.html", "--csv", "a.csv", "--json")
    assert "hunter2" not in fedpatch(*argv).out
    assert all("hunter2" not in Path(name).read_text("utf-8") for name in ("a.html", "a.csv"))
    assert "kitchen" in Path("a.html").read_text("utf-8")


@pytest.mark.medium
def test_report_changes_no_state(fedpatch, tmp_path):
    _run(tmp_path, 2)
    before = (tmp_path / REGISTRY_FILE).read_bytes()
    fedpatch("report", "last", "--state-dir", tmp_path)
    assert (tmp_path / REGISTRY_FILE).read_bytes() == before
