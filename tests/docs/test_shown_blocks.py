"""Every block of the pages that is not typed into a shell: the program it belongs to reads it or prints it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import yaml

from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.sensors.ups_command import read_command
from fedpatch.shared.app.logging import LineFormatter, LogFormat, fields
from fedpatch.shared.errors import DataError
from fedpatch.shared.task_checks.data_checks import checked
from fedpatch.shared.tasks import metrics
from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.downloads import DataFile
from fedpatch.shared.tasks.frozen_values import new_model
from fedpatch.shared.tasks.task import DeviceData
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tasks.validation_split import split_for
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.tensors.schema import Schema
from fedpatch.shared.wire.codec import BODY_TYPES
from fedpatch.simulator.experiment.progress import ProgressLines
from fedpatch.simulator.spec.study import Point, Study
from tests.device_agent.exported_models import publish
from tests.docs.pages import OTHER
from tests.monitoring.prometheus import promtool
from tests.simulator.experiment.test_progress import STUDY
from tests.support import frozen_tasks
from tests.support.paths import ROOT
from tests.system.commands import run

# Blocks that are checked by the tests of their page.
BY_OTHERS = {
    ("docs/how-to/bring-your-task.md", "TASK ="): "tests/docs/test_bring_your_task.py",
    ("docs/how-to/bring-your-task.md", "from fedpatch import Task"): "tests/docs/test_bring_your_task.py",
    ("docs/how-to/personal-model.md", "today.csv[0]"): "tests/device_agent/models/test_readings_at_prediction.py",
    ("docs/tutorials/own-readings.md", "minute.txt[0]"): "tests/docs/test_own_readings.py",
    ("docs/tutorials/own-readings.md", "warn "): "tests/docs/test_own_readings.py",
    ("docs/tutorials/own-readings.md", "==> readings.txt"): "tests/docs/test_own_readings.py",
    ("docs/tutorials/own-readings.md", "run 20"): "tests/docs/test_own_readings.py",
    ("docs/how-to/bring-your-task.md", "task ="): "tests/docs/test_bring_your_task.py",
    ("docs/how-to/bring-your-task.md", "[project"): "tests/docs/test_bring_your_task.py",
    ("docs/how-to/own-strategy.md", "from dataclasses"): "tests/docs/test_own_strategy.py",
    ("docs/how-to/own-strategy.md", "[project"): "tests/docs/test_own_strategy.py",
    ("docs/reference/conditions.md", "#!/bin/sh"): "tests/docs/test_conditions.py",
    ("docs/reference/conditions.md", "ups ="): "tests/docs/test_conditions.py",
    ("docs/how-to/brokers.md", "connection central"): "tests/broker/test_bridge.py",
    ("docs/how-to/fleet.md", "packages="): "tests/ansible/test_package_list.py",
    ("docs/how-to/monitoring.md", "global:"): "tests/docs/test_runbooks.py",
    ("docs/how-to/personal-model.md", "from fedpatch import PersonalModel"): "tests/docs/test_personal_model.py",
    ("docs/reference/preferences.md", "broker ="): "tests/docs/test_preferences.py",
    ("docs/reference/protocol.md", "           accept"): "tests/docs/test_protocol.py",
    ("docs/reference/topics.md", "# fedpatch fleet"): "tests/docs/test_reference_pages.py",
    ("docs/tutorials/first-hour.md", "run 20"): "tests/docs/test_first_hour.py",
    ("docs/tutorials/first-hour.md", "task digits"): "tests/docs/test_first_hour.py",
    ("docs/tutorials/first-hour.md", "present model"): "tests/docs/test_first_hour.py",
    ("docs/tutorials/first-hour.md", "…\nwarning"): "tests/docs/test_first_hour.py",
    ("docs/tutorials/own-task.md", "kitchen of fleet"): "tests/docs/test_tutorial.py",
    ("README.md", "run 20"): "tests/docs/test_pages_followed.py",
    ("docs/reference/cli.md", "round 3/30 aggregated"): "tests/docs/test_pages_followed.py",
    ("docs/reference/cli.md", '{"run"'): "tests/docs/test_pages_followed.py",
    ("docs/reference/cli.md", '{"study"'): "tests/docs/test_pages_followed.py",
    ("docs/how-to/doctor.md", "ok "): "tests/docs/test_pages_followed.py",
    ("docs/how-to/personal-model.md", "STATE_DIR"): "tests/docs/test_pages_followed.py",
    ("docs/how-to/service.md", "[Service]\nBind"): "tests/docs/test_pages_followed.py",
    ("docs/how-to/service.md", "[Service]\nDevice"): "tests/docs/test_pages_followed.py",
    ("docs/explanation/threat-model.md", "[Service]"): "tests/docs/test_pages_followed.py",
    ("docs/explanation/privacy.md", "delta(epsilon)"): "tests/shared/privacy/test_gaussian.py",
    ("docs/tutorials/own-task.md", "21 passed"): "tests/docs/test_tutorial.py",
    ("docs/tutorials/own-task.md", "temperature,"): "tests/docs/test_tutorial.py",
    ("docs/tutorials/own-task.md", "run "): "tests/docs/test_tutorial.py",
    ("docs/tutorials/own-task.md", "now.csv[0]"): "tests/docs/test_tutorial.py",
    ("docs/how-to/python.md", "import fedpatch"): "tests/simulator/experiment/test_user_study.py",
    ("docs/how-to/python.md", "result ="): "tests/system/test_python_api.py",
    ("docs/how-to/python.md", "with fedpatch"): "tests/system/test_python_api.py",
    ("docs/how-to/trackers.md", "[project"): "tests/shared/trackers/test_tracking.py",
    ("docs/how-to/watch.md", "20"): "tests/docs/test_pages_followed.py",
    ("docs/how-to/watch.md", '{"fleet"'): "tests/docs/test_pages_followed.py",
}
FORMULAS = "docs/explanation/concepts.md"  # of the paper, and one picture: no program reads or prints them
HERE = {
    "measures": ("docs/how-to/bring-your-task.md", "Task("),
    "origin": ("docs/how-to/bring-your-task.md", "train_x of device 7"),
    "prepare": ("docs/how-to/bring-your-task.md", "def prepare"),
    "base": ("docs/how-to/bring-your-task.md", "np.savez"),
    "schema": ("docs/reference/protocol.md", '[["bn1.bias"'),
    "validation": ("docs/how-to/bring-your-task.md", "DeviceData("),
    "model": ("docs/how-to/personal-model.md", "model of digits"),
    "progress": ("docs/reference/cli.md", "round 12/500"),
    "ups": ("docs/reference/conditions.md", "power=on"),
    "problems": ("docs/reference/configuration.md", "fedpatch.toml:12"),
    "archives": ("docs/how-to/fleet.md", "fleet_package_archives"),
    "firewall": ("docs/how-to/fleet.md", "firewall_enabled"),
    "scraping": ("docs/reference/metrics.md", "# prometheus.yml"),
    "query": ("docs/reference/metrics.md", "# Mean seconds"),
    "grafana": ("docs/how-to/monitoring.md", "apiVersion"),
    "container": ("docs/reference/protocol.md", '{"meta"'),
    "messages": ("docs/reference/protocol.md", "coordinator  "),
    "log line": ("docs/how-to/service.md", "level=info"),
}


def _shown(name: str) -> str:
    page, start = HERE[name]
    (found,) = (block.text for block in OTHER if block.page == page and block.text.startswith(start))
    return found


@pytest.mark.parametrize("block", [block for block in OTHER if block.page != FORMULAS], ids=str)
def test_every_block_has_one_test(block):
    claims = [*BY_OTHERS, *HERE.values()]
    assert sum(page == block.page and block.text.startswith(start) for page, start in claims) == 1


def test_every_claim_is_of_a_block_and_held_by_a_test():
    for page, start in [*BY_OTHERS, *HERE.values()]:
        assert any(block.page == page and block.text.startswith(start) for block in OTHER), (page, start)
    assert all((ROOT / test).exists() for test in BY_OTHERS.values())
    text = Path(__file__).read_text("utf-8")
    assert all(f'_shown("{name}")' in text for name in HERE)


def test_the_measures_of_a_task_are_written_so():
    for line in _shown("measures").splitlines():
        changed = re.sub(r"^Task\(\.\.\., ", "replace(task, ", line)
        task = eval(changed, {"replace": dataclasses.replace, "task": digits.TASK, "metrics": metrics})
        assert task.metric in (metrics.mae, metrics.macro_f1)


def test_a_validation_part_is_asked_for_so():
    part = {
        f"{name}_{axis}": np.zeros((100, 2)[: 2 if axis == "x" else 1]) for name in ("train", "test") for axis in "xy"
    }
    names = {**part, "val_x": np.zeros((7, 2)), "val_y": np.zeros(7), "DeviceData": DeviceData}
    split, own, by_time = _shown("validation").splitlines()
    data, given = eval(split, names), eval(own, names)
    assert (data.val_x, len(given.val_x)) == (None, 7)
    changed = by_time.replace("Task(..., ", "replace(task, ")
    task = eval(changed, {"replace": dataclasses.replace, "task": digits.TASK})
    assert len(split_for(task, data).train_x) == 80
    assert len(split_for(task, given).train_x) == 100


def test_models_are_listed_so(tmp_path):
    (shown,) = _shown("model").splitlines()
    match = re.fullmatch(
        r"model of (?P<task>\w+), accuracy (?P<ua>\S+) on (?P<test>\d+) test examples \(chosen by (?P<val>\S+) on "
        r"(?P<count>\d+) validation examples\): federated \((?P<reason>.*)\), of round (?P<round>\d+) of run (?P<run>\S+), "
        r"made (?P<made>\S+), 51 kB, \.\.\.",
        shown,
    )
    assert match
    figures: dict[str, Any] = {"user_accuracy": float(match["ua"]), "test_examples": int(match["test"])}
    figures |= {"validation_accuracy": float(match["val"]), "validation_examples": int(match["count"])}
    figures |= {"reason": match["reason"]}
    origin: dict[str, Any] = {
        "task": match["task"],
        "run": match["run"],
        "created": match["made"],
        "size_bytes": 51_000,
    }
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), int(match["round"]), **figures, **origin)
    done = run("fedpatch-agent", "models", "--state-dir", tmp_path)
    assert done.out.startswith(f"present {shown.removesuffix('...')}")


def test_documented_admission_output_is_parsed():
    power = read_command(_shown("ups"), "my-hat")
    assert (power.external.value, power.battery_percent.value) == (True, 83.5)


@pytest.mark.medium
def test_documented_settings_problems_are_printed(tmp_path):
    toml = [""] * 14
    toml[11], toml[13] = "quorum = 1.5", "raunds = 5"
    (tmp_path / "fedpatch.toml").write_text("\n".join(toml))
    given = ("run", "--config", "fedpatch.toml", "--encoding", "fp17")
    done = run("fedpatch", *given, cwd=tmp_path, environment={"FEDPATCH_DEADLINE_S": "soon"})
    assert done.code == 2
    assert set(_shown("problems").splitlines()) <= {line.removeprefix("fedpatch: ") for line in done.err.splitlines()}


def test_variables_of_the_playbooks_are_known_to_a_role():
    known: dict[str, Any] = {}
    for path in sorted((ROOT / "ansible/roles").glob("*/meta/argument_specs.yml")):
        known |= yaml.safe_load(path.read_text("utf-8"))["argument_specs"]["main"].get("options", {})
    types = {"dict": dict, "list": list, "bool": bool}
    for name, value in (yaml.safe_load(_shown("archives")) | yaml.safe_load(_shown("firewall"))).items():
        assert isinstance(value, types[known[name]["type"]]), name


def test_prometheus_takes_the_configuration_and_the_query(tmp_path):
    (tmp_path / "prometheus.yml").write_text(_shown("scraping"))
    rules = {"groups": [{"name": "page", "rules": [{"record": "shown", "expr": _shown("query")}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    for what in ("config", "rules"):
        checked = promtool("check", what, tmp_path / {"config": "prometheus.yml", "rules": "rules.yml"}[what])
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_documented_grafana_provisioning_equals_that_of_the_role():
    installed = (ROOT / "ansible/roles/monitoring/templates/grafana-dashboards.yaml.j2").read_text("utf-8")
    assert yaml.safe_load(_shown("grafana")) == yaml.safe_load(installed)


def test_row_with_nan_is_named_as_shown():
    x = np.ones((20, 3), np.float32)
    x[12, 1] = np.nan
    y = np.zeros(20, np.int64)
    data = DeviceData(x, y, x[:2], y[:2], origin=lambda field, row: f"readings.csv, line {row + 1}")
    task = replace(digits.TASK, input_shape=(), class_names=())
    with pytest.raises(DataError, match=re.escape(_shown("origin").strip())):
        checked(task, data, "device 7")


def test_prepare_is_written_so():
    names: dict[str, Any] = {"np": np, "MEAN": np.float32(2), "SCALE": np.float32(4)}
    exec(_shown("prepare"), names)
    assert names["prepare"](np.array([6, np.nan], np.float32)).tolist() == [1.0, 0.0]


def test_a_file_of_frozen_values_is_written_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(_shown("base"), {"np": np, "build_model": frozen_tasks.build_model})
    digest = hashlib.sha256((tmp_path / "base.npz").read_bytes()).hexdigest()
    monkeypatch.setenv("FEDPATCH_DATA", str(tmp_path))
    task = dataclasses.replace(frozen_tasks.FROM_FILE, frozen_file=DataFile(".", "base.npz", digest))
    assert schema_of(new_model(task)).digest == schema_of(new_model(frozen_tasks.TASK)).digest


def test_schema_is_the_json_that_its_digest_is_made_of():
    shown = _shown("schema").strip()
    digest = hashlib.sha256(shown.encode("ascii")).hexdigest()
    assert Schema.from_lists(json.loads(shown)).digest == digest


def test_a_container_of_tensors_is_as_the_protocol_shows_it():
    tensors = initial_tensors(digits.TASK, seed=0)
    document = msgpack.unpackb(pack(tensors, schema_of(digits.TASK.build_model()), {}, "fp32").blob)
    shown = _shown("container")
    assert list(document) == re.findall(r'"(\w+)"', shown)
    assert {len(entry) for entry in document["tensors"]} == {len(shown.split("[[")[1].split("]")[0].split(","))}


def test_the_messages_of_a_round_are_those_of_the_wire():
    arrows = "\n".join(re.findall(r"^  \| (.*)\|", _shown("messages"), re.MULTILINE))
    named = set(re.findall(r"\b[a-z_]+\b", re.sub(r"\(.*?\)|model chunks, retained", "", arrows)))
    assert named <= set(BODY_TYPES), named - set(BODY_TYPES)
    assert len(named) > 8


def test_a_line_of_the_log_is_written_so():
    shown = _shown("log line").strip()
    (message,) = re.findall(r'message="(.*?)"', shown)
    record = logging.LogRecord("fedpatch.agent", logging.INFO, "", 0, message, None, None)
    run_id, number = re.findall(r" run=(\S+) round=(\d+)$", shown)[0]
    record.__dict__.update(fields(run=run_id, round=int(number)))
    assert LineFormatter(LogFormat.LOGFMT, journal=True).format(record).partition(">")[2] == shown


def test_documented_simulation_progress_is_printed():
    stream, now = io.StringIO(), iter((0.0, 60.0))
    with ProgressLines(stream, Study.from_dict(STUDY.to_dict() | {"rounds": 500}), clock=lambda: next(now)) as lines:
        lines.show(Point(12, 0.912, 0.8, 0.7, 4, None, 0.41))
    assert stream.getvalue() == _shown("progress")
