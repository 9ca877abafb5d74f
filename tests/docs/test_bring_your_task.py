"""The code, commands and settings on docs/how-to/bring-your-task.md work as shown."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.task import DeviceData, Task, find_task
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tasks.validation_split import split_for
from fedpatch.shared.tensors.patches import parse_policy
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "how-to" / "bring-your-task.md").read_text("utf-8")
EXAMPLE = DOCS / "examples/two_moons_task.py"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def _shown(pattern: str) -> list[str]:
    found = re.findall(pattern, PAGE)
    assert found, f"the page shows nothing like {pattern}"
    return found


@pytest.fixture
def task(tmp_path, monkeypatch) -> Iterator[Task]:
    """The page's task, found by the steps of the page, in a folder that holds only the file to which the page links."""
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "two_moons_task", raising=False)
    ref = _shown(r"fedpatch run --task (\S+)")[0]
    yield find_task(ref)
    del sys.modules["two_moons_task"]


def _data(task: Task, spec: str) -> DeviceData:
    return task.load_data(spec, Path("/nonexistent"))


def _user_accuracy(task: Task, model: torch.nn.Module, data: DeviceData) -> float:
    model.eval()
    with torch.no_grad():
        return task.metric(model(torch.from_numpy(data.test_x)), torch.from_numpy(data.test_y))


def test_code_on_the_page_is_part_of_the_example_file():
    (shown,) = _blocks("python")
    assert shown in EXAMPLE.read_text("utf-8")


def test_the_shown_commands_and_keys_exist(task):
    """Options on the page are settings of their commands; the shown agent.toml names this task and its data."""
    for command, settings in (("demo", DemoSettings), ("run", RunSettings)):
        options = re.findall(r"--(\S+)", _shown(rf"fedpatch {command} (.*)")[0])
        assert {option.replace("-", "_") for option in options} <= {field.name for field in fields(settings)}
    agent = tomllib.loads(_blocks("toml")[0])
    assert agent.keys() <= {field.name for field in fields(AgentSettings)}
    assert find_task(agent["task"]) is task
    assert len(_data(task, agent["data"]).train_x) == 240


def test_the_shown_entry_point_makes_the_task_known(task, tmp_path, monkeypatch):
    """A distribution with the page's entry point makes the task known by its name."""
    declared = tomllib.loads(_blocks("toml")[1])["project"]["entry-points"]["fedpatch.tasks"]
    info = tmp_path / "moons-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moons\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in declared.items())
    (info / "entry_points.txt").write_text(f"[fedpatch.tasks]\n{lines}")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_task("two-moons") is task


def test_every_shown_data_spec_is_read():
    """A bundled task loads each data spec of the page."""
    for spec in _shown(r"`((?:shard|even|aligned):[^`]+)`"):
        data = digits.TASK.load_data(spec.replace("3/200", "3/10"), Path("/nonexistent"))
        if "noisy-fraction" not in spec:
            assert data.counts_in_ua == ("nois" not in spec)


def test_the_data_spec_is_the_tasks_own_business(task):
    """Each demo device has its own points, the same at each load; the error of a wrong spec shows a right one."""
    first, second = (task.demo_data.format(index=index, count=2) for index in range(2))
    assert np.array_equal(_data(task, first).train_x, _data(task, first).train_x)
    assert not np.array_equal(_data(task, first).train_x, _data(task, second).train_x)
    with pytest.raises(UsageError, match="for example sensor:3"):
        _data(task, "shard:0/10")


def test_every_shown_patch_policy_fits_the_model(task):
    """The model can be federated, and each policy on the page keeps at least one tensor private."""
    schema = schema_of(task.build_model())
    shown = {*_shown(r"--private (\S+)"), *_shown(r"`(stats|affine|all|names:[^`]+)`")}
    assert shown == {"stats", "affine", "all", "names:fc2.*"}
    for text in shown:
        assert parse_policy(text).private_names(schema)


def test_the_model_learns_one_device_and_not_another(task):
    """A model trained on one sensor's points classifies that sensor's test points, and another sensor's less well."""
    near, far = (_data(task, task.demo_data.format(index=index, count=10)) for index in (0, 2))
    x, y = torch.from_numpy(near.train_x), torch.from_numpy(near.train_y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = task.build_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=task.learning_rates["fedavg-adam"])
        for batch in (batch for _ in range(12) for batch in torch.randperm(len(x)).split(task.batch_size)):
            optimizer.zero_grad()
            task.loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    assert _user_accuracy(task, model, near) > 0.95
    assert _user_accuracy(task, model, far) < 0.9


def test_shown_format_of_readings_makes_windows_for_training_and_testing(tmp_path):
    lines = [f"{i},{i % 7},{-i % 5},{i / 9},{'walk' if i // 100 % 2 else 'rest'}" for i in range(2000) if i != 700]
    (tmp_path / "monday.csv").write_text("\n".join(["t,x,y,z,state", *lines, ""]))
    [shown] = [one for one in _blocks("text") if one.startswith("from fedpatch import Task")]
    place: dict[str, Any] = {}
    exec(
        shown.replace("Task(...", "replace(task"), place | {"replace": replace, "task": digits.TASK}, place
    )  # our own code
    place["load_data"].__globals__.update(place)
    data = place["load_data"]("monday.csv", tmp_path)
    assert data.train_x.shape[1:] == (3, 50)
    assert {0, 1} == set(data.train_y) == set(data.test_y)
    assert place["TASK"].readings is place["READINGS"]
    split = split_for(place["TASK"], data)
    values = [set(np.asarray(part)[:, 2].ravel().tolist()) for part in (split.train_x, split.val_x, split.test_x)]
    assert all(values) and not values[0] & (values[1] | values[2])
