"""Tasks are found by name or by module:attribute; each error is one sentence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpatch.shared.app.named_plugins import BrokenPlugin
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.task import TASKS, DeviceData, Task, data_root, find_task

MODULE = """
from fedpatch.shared.tasks.task import Task

def _never(*_):
    raise AssertionError("finding a task must not run it")

TASK = Task("{name}", "for tests", _never, _never, _never, _never)
NUMBER = 7
"""


@pytest.fixture
def forget_modules():
    """Remove the modules that a test imported, so that every test imports its own."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def workdir(tmp_path, monkeypatch, forget_modules):
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def install(tmp_path, monkeypatch, forget_modules):
    """Install a distribution that declares entry points, as pip would leave it on the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(distribution: str, entry_points: dict[str, str], **modules: str) -> None:
        info = site / f"{distribution}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[fedpatch.tasks]", *lines, ""]))
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)

    return install


def _task(**changes) -> Task:
    def unused(*_):
        raise AssertionError

    fields = {"name": "a", "description": "", "build_model": unused, "load_data": unused, "loss": unused}
    return Task(**{**fields, "metric": unused, **changes})


def _data(**changes) -> DeviceData:
    parts = {"train_x": np.zeros((3, 2)), "train_y": np.zeros(3), "test_x": np.zeros((1, 2)), "test_y": np.zeros(1)}
    return DeviceData(**{**parts, **changes})


@pytest.mark.parametrize("part", ["train_y", "test_y"])
def test_device_data_needs_one_target_per_input(part):
    with pytest.raises(DataError, match=r"(training|test) data has \d inputs but 2 targets"):
        _data(**{part: np.zeros(2)})


@pytest.mark.parametrize("part", ["train", "test"])
def test_device_data_may_not_be_empty(part):
    with pytest.raises(DataError, match="data is empty"):
        _data(**{f"{part}_x": np.zeros((0, 2)), f"{part}_y": np.zeros(0)})


@pytest.mark.parametrize("name", ["", "Digits", "a b", "-a", "a" * 33, "ä", "a\n"])
def test_task_names_are_what_the_wire_allows(name):
    with pytest.raises(UsageError, match="1 to 32 of a-z, 0-9, _ and -"):
        _task(name=name)


def test_task_needs_a_batch():
    with pytest.raises(UsageError, match="batch_size is 0"):
        _task(batch_size=0)


@pytest.mark.parametrize("spec", ["machine-{devices}", "machine-{index", "{}", "{index.name}", "{seed}"])
def test_demo_data_with_another_field_is_refused_with_the_fields_it_may_have(spec):
    with pytest.raises(UsageError, match=r"demo_data is .*\{index\} and \{count\}"):
        _task(demo_data=spec)


def test_current_directory_is_importable_for_that_import_only(workdir):
    before = list(sys.path)
    (workdir / "my_path_task.py").write_text(MODULE.format(name="moons"))
    assert find_task("my_path_task:TASK").name == "moons"
    with pytest.raises(UsageError):
        find_task("my_absent_task:TASK")
    assert sys.path == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_is_not_interrupted_in_the_middle(workdir, number):
    """Ctrl-C during the import of torch takes effect after it: an exception in the middle would abort the process."""
    name = f"my_{number.name.lower()}_task"
    (workdir / f"{name}.py").write_text(
        f"import os\nos.kill(os.getpid(), {int(number)})\n{MODULE.format(name='moons')}\nWHOLE = True\n"
    )
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            find_task(f"{name}:TASK")
        assert sys.modules[name].WHOLE
        assert signal.getsignal(number) is signal.default_int_handler


def test_second_ctrl_c_ends_the_import_at_once(workdir):
    kill = f"os.kill(os.getpid(), {int(signal.SIGINT)})"
    (workdir / "my_endless_task.py").write_text(f"import os, time\n{kill}\n{kill}\ntime.sleep(600)\n")
    with interruptible(), pytest.raises(KeyboardInterrupt):
        find_task("my_endless_task:TASK")


@pytest.mark.parametrize(
    ("ref", "problem"),
    [
        ("my_things:NUMBER", "'NUMBER' is of type int, not a fedpatch.Task"),
        ("my_things:TSAK", r"has no attribute 'TSAK' \(there: TASK\)"),
        ("my_things:TASK.twin", "has no attribute 'TASK.twin'"),
        ("nowhere:TASK", "module 'nowhere' cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("my_bad:TASK", "module 'my_bad' cannot be imported: SyntaxError"),
        ("my_name:TASK", "module 'my_name' cannot be imported: UsageError: task name 'My Moons' is not allowed"),
        ("my_things:", "neither a name nor module:attribute"),
        (":TASK", "neither a name nor module:attribute"),
        ("my_things.py:TA SK", "neither a name nor module:attribute"),
    ],
)
def test_unresolvable_task_reference_raises_with_the_reason(workdir, ref, problem):
    (workdir / "my_things.py").write_text(MODULE.format(name="things"))
    (workdir / "my_bad.py").write_text("def")
    (workdir / "my_name.py").write_text(MODULE.format(name="My Moons"))
    with pytest.raises(UsageError, match=problem) as caught:
        find_task(ref)
    assert repr(ref) in str(caught.value)


def test_task_with_imports_of_version_0_1_error_names_the_line(workdir):
    (workdir / "my_old.py").write_text("from shared.task import DeviceData, Task\n")
    with pytest.raises(UsageError, match="from fedpatch import DeviceData, Task"):
        find_task("my_old:TASK")


@pytest.mark.parametrize(
    ("ref", "entry_points", "name", "problem"),
    [
        ("two-mons", ["a_task:TASK"], "two-moons", r"unknown task 'two-mons'; did you mean 'two-moons'\?"),
        ("two-moons", ["a_task:TASK"], "moons", "the task there is named 'moons'"),
        ("two-moons", ["a_task"], "two-moons", "must be module:attribute"),
        ("two-moons", ["a_task:TASK", "b_task:TASK"], "two-moons", "more than once, as a_task:TASK and b_task:TASK"),
    ],
    ids=["mistyped", "another name", "no attribute", "two distributions"],
)
def test_installed_task_that_is_not_plainly_named_is_refused(install, ref, entry_points, name, problem):
    """The order of the path never decides which of two tasks trains."""
    for entry_point in entry_points:
        module = entry_point.partition(":")[0]
        install(module, {"two-moons": entry_point}, **{module: MODULE.format(name=name)})
    with pytest.raises(UsageError, match=problem):
        find_task(ref)


@pytest.mark.parametrize("name", ["bearing_task", "bearing", "bearing_task.py"])
def test_the_name_of_a_file_is_answered_with_how_to_name_the_task_in_it(tmp_path, monkeypatch, name):
    (tmp_path / "bearing_task.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=r"the task TASK in bearing_task.py is named module:attribute, bearing_task:TASK$"
    ):
        find_task(name)
    with pytest.raises(UsageError, match=r"a task of your own is named module:attribute, such as my_task:TASK$"):
        find_task("elsewhere")


def test_installed_task_that_cannot_be_imported_names_module_and_reason(install):
    install("moons", {"two-moons": "moons_task:TASK"}, moons_task="import a_module_that_is_not_there")
    with pytest.raises(UsageError) as caught:
        find_task("two-moons")
    assert str(caught.value) == (
        "task 'two-moons' (entry point moons_task:TASK of moons 1.2): module 'moons_task' cannot be imported: "
        "ModuleNotFoundError: No module named 'a_module_that_is_not_there'; "
        "install 'a_module_that_is_not_there', which the task imports"
    )


@pytest.mark.parametrize("ref", ["nowhere:TASK", "nowhere.deeper:TASK"])
def test_missing_module_error_has_a_remedy(workdir, ref):
    with pytest.raises(
        UsageError, match=r"; start the command in the folder that the file lies in, or install the module$"
    ):
        find_task(ref)


def test_a_module_that_is_named_like_its_file_is_named_without_the_ending(workdir):
    (workdir / "moons_task.py").write_text(MODULE.format(name="two-moons"))
    with pytest.raises(UsageError) as caught:
        find_task("moons_task.py:TASK")
    assert str(caught.value) == "task 'moons_task.py:TASK': name the module without .py: moons_task:TASK"


def test_a_name_is_checked_without_importing_the_task(install):
    install("moons", {"two-moons": "moons_task:TASK"}, moons_task="raise SystemExit('imported')")
    TASKS.check_name("two-moons")
    TASKS.check_name("moons_task:TASK")
    for wrong, hint in (("two-mons", "did you mean 'two-moons'"), ("moons_task:", "neither a name nor module")):
        with pytest.raises(UsageError, match=hint):
            TASKS.check_name(wrong)


def test_one_distribution_seen_twice_is_no_conflict(install):
    """An editable install can show the same entry point in two places."""
    install("moons", {"two-moons": "moons_task:TASK"}, moons_task=MODULE.format(name="two-moons"))
    install("moons-again", {"two-moons": "moons_task:TASK"})
    assert find_task("two-moons").name == "two-moons"


def test_a_broken_task_hides_no_other(install):
    install("moons", {"two-moons": "moons_task:TASK"}, moons_task=MODULE.format(name="two-moons"))
    install("broken", {"broken-task": "broken_task:TASK"}, broken_task="raise RuntimeError('no camera')")
    listed = {task.name: task for task in TASKS.installed()}
    assert isinstance(listed["two-moons"], Task)
    broken = listed["broken-task"]
    assert isinstance(broken, BrokenPlugin)
    assert "RuntimeError: no camera" in broken.problem


def test_data_folder_is_chosen_by_the_environment(monkeypatch):
    monkeypatch.setenv("FEDPATCH_DATA", "/srv/data")
    assert data_root() == Path("/srv/data")
    for unset in (lambda: monkeypatch.setenv("FEDPATCH_DATA", ""), lambda: monkeypatch.delenv("FEDPATCH_DATA")):
        unset()
        assert data_root() == Path.home() / ".cache/fedpatch/data"


@pytest.mark.parametrize("module", ["task", "bundled.digits", "bundled.mnist", "bundled.cifar10"])
def test_finding_a_task_loads_no_torch(module):
    program = f"import sys, fedpatch.shared.tasks.{module}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


def test_user_without_home_is_told_what_to_set(monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FEDPATCH_DATA", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UsageError, match=r"no home directory.*set FEDPATCH_DATA"):
        data_root()
