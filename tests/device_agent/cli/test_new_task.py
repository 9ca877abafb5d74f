"""`fedpatch-agent new-task`: the new task works unchanged, and no file is overwritten."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from fedpatch.device_agent.cli.new_task.new_task import KINDS, module_name, render, write_skeleton
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.task import find_task
from fedpatch.shared.tasks.validation_split import split_for
from tests.support.paths import ROOT
from tests.support.programs import install
from tests.system.commands import run

TIMEOUT_S = 300
ONE_KIND = [one if at == 0 else pytest.param(one, marks=pytest.mark.slow) for at, one in enumerate(KINDS)]
"""CI plays the commands of one kind; the templates of all kinds are read by the quick tests."""


@pytest.fixture
def no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the test's imports afterwards."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def test_new_task_writes_and_lists_four_files(agent, tmp_path):
    ended = agent("new-task", "room-climate", "--dir", tmp_path)
    folder = tmp_path / "room-climate"
    names = ["pyproject.toml", "room_climate_task.py", "test_room_climate.py", "README.md"]
    assert ended.code == 0
    assert ended.out.splitlines() == [str(folder / name) for name in names]
    assert "python -m pytest" in ended.err
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_the_next_step_can_be_pasted(agent, tmp_path):
    parent = tmp_path / "a b" / "ü's $HOME"
    parent.mkdir(parents=True)
    printed = agent("new-task", "room", "--dir", parent).err
    step = printed.removeprefix("next: ").partition(" && ")[0]
    done = subprocess.run(["sh", "-c", f"{step} && pwd -P"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{(parent / 'room').resolve()}\n"


def test_as_json_it_is_one_document(agent, tmp_path):
    ended = agent("new-task", "energy", "--kind", "regression", "--dir", tmp_path, "--json")
    document = json.loads(ended.out)
    assert (document["task"], document["kind"], document["folder"]) == (
        "energy",
        "regression",
        str(tmp_path / "energy"),
    )
    assert [Path(one).exists() for one in document["files"]] == [True] * 4


def test_nothing_is_overwritten(agent, tmp_path):
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    ended = agent("new-task", "room", "--dir", tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert "is not empty" in ended.err
    assert [path.read_text() for path in folder.iterdir()] == ["mine"]
    (folder / "notes.txt").unlink()
    assert agent("new-task", "room", "--dir", tmp_path).code == 0


def test_a_link_to_nothing_in_the_place_of_the_folder_is_named(agent, tmp_path):
    (tmp_path / "room").symlink_to(tmp_path / "absent")
    ended = agent("new-task", "room", "--dir", tmp_path)
    assert ended.code == 2 and ended.err.startswith(f"fedpatch-agent: {tmp_path}/room is a file")


def test_a_file_in_the_place_of_the_folder_is_refused(agent, tmp_path):
    (tmp_path / "room").write_text("mine")
    for where, remedy in ((tmp_path, "choose another name"), (tmp_path / "room", "choose another --dir")):
        ended = agent("new-task", "room", "--dir", where)
        assert (ended.code, ended.err) == (
            2,
            f"fedpatch-agent: {tmp_path}/room is a file, and not a folder; {remedy}\n",
        )
    assert (tmp_path / "room").read_text() == "mine"


@pytest.mark.parametrize("name", ["Room", "3d", "-x", "a b", "", "x" * 33, "../up", "a.b", "digits"])
def test_a_name_that_no_new_task_can_have_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match=r"cannot be the name|installed already"):
        write_skeleton(name, "classification", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_kind_error_lists_the_known_kinds():
    with pytest.raises(UsageError, match="did you mean 'regression'"):
        render("room", "regresion")


@pytest.mark.parametrize("kind", KINDS)
def test_no_mark_of_the_templates_is_left(kind):
    for text in render("room", kind).values():
        assert "@NAME@" not in text and "@MODULE@" not in text and "@STEM@" not in text
        assert "#[" not in text
    assert ("MAE" in render("room", kind)["room_task.py"]) == (kind == "regression")


@pytest.mark.parametrize("kind", KINDS)
def test_the_declared_entry_point_makes_the_task_known(kind, tmp_path, monkeypatch, no_module):
    folder = write_skeleton("my-room", kind, tmp_path)[0].parent
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    (declared,) = project["project"]["entry-points"]["fedpatch.tasks"].items()
    assert declared == ("my-room", "my_room_task:TASK")
    assert project["tool"]["setuptools"]["py-modules"] == [module_name("my-room")]
    install(f"[fedpatch.tasks]\n{declared[0]} = {declared[1]}\n", tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(folder))
    task = find_task("my-room")
    expected = ("accuracy", "max") if kind == "classification" else ("MAE", "min")
    assert (task.name, task.metric_name, task.metric_goal) == ("my-room", *expected)


@pytest.mark.parametrize("kind", KINDS)
def test_new_task_with_two_files_that_grow_holds_out_nothing_that_was_trained_on(
    kind, tmp_path, monkeypatch, no_module
):
    """The readings are split as for training, and the file that comes first by name grows, too."""
    monkeypatch.syspath_prepend(str(write_skeleton("my-room", kind, tmp_path)[0].parent))
    module, folder = importlib.import_module("my_room_task"), tmp_path / "device"
    trained: set[tuple[float, ...]] = set()
    for name in ("kitchen.csv", "living.csv", "kitchen.csv", "living.csv", "attic.csv"):
        if (folder / name).exists():
            (folder / name).rename(folder / "readings.csv")
        module.write_sample(folder, len(name), 400)
        (folder / "readings.csv").rename(folder / name)
        data = split_for(module.TASK, module.load_data("device", tmp_path))
        assert data.val_x is not None and len(data.val_x) == pytest.approx(len(data.train_x) / 9, rel=0.05)
        assert not trained & set(map(tuple, data.val_x.tolist()))
        trained |= set(map(tuple, data.train_x.tolist()))


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_module: None) -> ModuleType:
    """The module of a new task `room`, with 250 readings in the folder `device`."""
    monkeypatch.syspath_prepend(str(write_skeleton("room", "classification", tmp_path)[0].parent))
    module = importlib.import_module("room_task")
    module.write_sample(tmp_path / "device", 1, 250)
    return module


def test_a_csv_file_with_a_byte_order_mark_is_read(room, tmp_path):
    path = tmp_path / "device/readings.csv"
    count = len(room.load_data("device", tmp_path).train_x)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(room.load_data("device", tmp_path).train_x) == count


def test_columns_that_no_comma_separates_are_shown_with_the_remedy(room, tmp_path):
    path = tmp_path / "device/readings.csv"
    path.write_text(path.read_text().replace(",", ";"))
    with pytest.raises(
        DataError, match=r"no column temperature, .*; there is temperature;humidity;light;state; .* set delimiter=';'"
    ):
        room.load_data("device", tmp_path)


def test_file_with_many_damaged_lines_is_refused_with_the_first_of_them(room, tmp_path):
    path = tmp_path / "device/readings.csv"
    path.write_text(path.read_text().replace("home", "Home"))
    first = next(number for number, line in enumerate(path.read_text().splitlines(), 1) if "Home" in line)
    words = rf"readings\.csv, line {first}, column state: 'Home' is none of the classes away, home; 'home' is spelled"
    with pytest.raises(DataError, match=words):
        room.load_data("device", tmp_path)


@pytest.mark.parametrize("line", ["21,5,40,0,100,0,1,5", "21.5,4021.5,40,100,1.2"])
def test_a_line_with_more_cells_than_columns_is_damaged(line, tmp_path, monkeypatch, no_module, caplog):
    """Decimal commas, or a line that a power cut shortened and the next one."""
    monkeypatch.syspath_prepend(str(write_skeleton("energy", "regression", tmp_path)[0].parent))
    module = importlib.import_module("energy_task")
    module.write_sample(tmp_path / "device", 1, 250)
    with (tmp_path / "device" / "readings.csv").open("a") as file:
        file.write(f"{line}\n")
    module.load_data("device", tmp_path)
    assert "damaged: 1, left out, of 251; the first: " in caplog.text
    assert "readings.csv, line 252: too many columns" in caplog.text


@pytest.mark.parametrize("words", [[], ["kitchen"], ["kitchen", "one", "300"]])
def test_the_generator_of_readings_names_its_arguments(words, room):
    done = subprocess.run([sys.executable, room.__file__, *words], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (1, "usage: python room_task.py FOLDER DEVICE COUNT\n")


@pytest.mark.medium
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", ONE_KIND)
def test_its_tests_pass_and_its_style_is_ours(kind, tmp_path):
    folder = write_skeleton("room", kind, tmp_path)[0].parent
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    rules = ["--config", str(ROOT / "pyproject.toml")]
    for line in (["pytest", "-q"], ["ruff", "check", *rules], ["ruff", "format", "--check", *rules]):
        done = subprocess.run(
            [sys.executable, "-m", *line], cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


@pytest.mark.medium
@pytest.mark.parametrize("kind", ONE_KIND)
def test_the_check_of_the_readme_passes_after_the_commands_before_it(kind, tmp_path):
    """Apart from the task's tests, which another test runs."""
    *_, readme = write_skeleton("room", kind, tmp_path)
    block = re.search(r"^(?: {4}.*\n)+", readme.read_text(), re.MULTILINE)
    assert block
    typed = [shlex.split(line, comments=True) for line in block[0].splitlines()]
    check = next(index for index, words in enumerate(typed) if words[:2] == ["fedpatch", "check-task"])
    for program, *words in typed[1 : check + 1]:
        command = ["-m", "fedpatch", *words] if program == "fedpatch" else words
        done = subprocess.run(
            [sys.executable, *command], cwd=readme.parent, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(TIMEOUT_S)
def test_the_demo_plays_a_regression_to_its_last_round(tmp_path):
    """The error decreases; the demo's usual target is an accuracy and does not end this run."""
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    folder = write_skeleton("energy", "regression", tmp_path)[0].parent
    options = ["--devices", 2, "--rounds", 6, "--private", "all", "--out", tmp_path / "demo", "--json"]
    done = run(
        "fedpatch", "demo", "--task", "energy_task:TASK", *options, cwd=folder, environment={"PYTHONPATH": str(ROOT)}
    )
    assert done.code == 0, done.err
    assert "MAE" in done.err and "(worst" in done.err
    summary = done.document
    assert (summary["stopped_because"], len(summary["rounds"])) == ("max_rounds", 6)
    first, last = summary["rounds"][0], summary["rounds"][-1]
    assert last["user_accuracy"] < first["user_accuracy"] / 2
    assert last["user_accuracy_min"] >= last["user_accuracy"]
    assert (last["metric"], last["metric_goal"]) == ("MAE", "min")
