"""After training, each device has a model for its applications, and the coordinator exports the global model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.shared.tasks.bundled.digits import TASK
from tests.support.brokers import Mosquitto
from tests.system.commands import run
from tests.system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

ROUNDS = 2
DATA = {"ann": "shard:0/2,validation=0.1", "bob": "shard:1/2"}
PATIENT = ("--wait-s", 100, "--grace-s", 100, "--recruit-deadline-s", 100, "--quorum", 1)


@dataclass(frozen=True)
class Played:
    """The files of a run after all processes have ended, also the broker."""

    summary: dict[str, Any]
    coordinator: Path
    state_dirs: dict[str, Path]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Two devices, one of which keeps no models for applications, after two rounds and then a power cut."""
    directory = tmp_path_factory.mktemp("personal")
    with Mosquitto() as broker, Fleet(broker.url, directory) as fleet:
        ann = fleet.start("ann", "digits", DATA["ann"], options=["--keep-margin", "1"])
        bob = fleet.start("bob", "digits", DATA["bob"], options=["--keep-models", "0"])
        fleet.wait_ready()
        terms = ["--task", "digits", "--devices", 2, "--rounds", ROUNDS, "--target-ua", "none", *PATIENT]
        where = ["--broker", broker.url, "--fleet", fleet.name, "--state-dir", directory / "coordinator"]
        done = run("fedpatch", "run", *where, *terms, "--json")
        assert done.code == 0, done.err
        ann.wait(lambda: f"personal model: that of round {ROUNDS} is in use now" in ann.log, "has the last model")
    yield Played(done.document, directory / "coordinator", {"ann": ann.state_dir, "bob": bob.state_dir})


def _ask(*command: object) -> Any:
    done = run("fedpatch-agent", *command, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_evaluate_gives_the_recorded_accuracy(played):
    state_dir = played.state_dirs["ann"]
    models = _ask("models", "--state-dir", state_dir)
    assert [(one["round"], one["current"]) for one in models] == [(2, True), (1, False)]
    found = _ask("evaluate", "--state-dir", state_dir, "--data", DATA["ann"])
    assert found["user_accuracy"] == found["user_accuracy_when_made"] == models[0]["user_accuracy"]
    assert found["run"] == played.summary["run"]
    assert found["user_accuracy"] > 0.5
    assert set(models[0]["candidates"]) == {"federated", "alone", "previous"}
    shown = run("fedpatch-agent", "status", "--state-dir", state_dir).out
    assert models[0]["reason"] in shown
    own = TASK.load_data(DATA["ann"], Path("/nonexistent"))
    assert own.val_x is not None
    assert [one["validation_examples"] for one in models] == [len(own.val_x)] * 2
    assert [one["test_examples"] for one in models] == [found["test_examples"]] * 2 == [len(own.test_x)] * 2


def test_training_and_report_leave_the_validation_part_out(played):
    """Some of ann's 719 training examples are held out; bob's spec has no validation part, so he trains on all of his."""
    own = [TASK.load_data(data, Path("/nonexistent")) for data in DATA.values()]
    assert played.summary["rounds"][0]["num_examples"] == sum(len(one.train_x) for one in own) < 1437


def test_predict_sorts_the_devices_own_images(played, tmp_path):
    state_dir = played.state_dirs["ann"]
    own = TASK.load_data(DATA["ann"], Path("/nonexistent"))
    np.save(tmp_path / "own.npy", own.test_x)
    predicted = _ask("predict", tmp_path / "own.npy", "--state-dir", state_dir)["predictions"]
    model = PersonalModel.open(state_dir)
    assert [one["class"] for one in predicted] == model.classify(own.test_x)
    right = np.mean([one["class"] == str(label) for one, label in zip(predicted, own.test_y, strict=True)])
    assert right == pytest.approx(model.metadata.user_accuracy)


def test_a_device_that_keeps_no_models_has_none(played):
    assert _ask("models", "--state-dir", played.state_dirs["bob"]) == []
    assert not (played.state_dirs["bob"] / "models").exists()
    assert [one["reported"] for one in played.summary["rounds"]] == [2, 2]


def test_the_coordinator_exports_the_global_model(played, tmp_path):
    done = run("fedpatch", "export", "last", "--state-dir", played.coordinator, "--out", tmp_path / "g.onnx", "--json")
    assert done.code == 0, done.err
    assert (done.document["kind"], done.document["round"], done.document["private_values"]) == ("global", 2, "initial")
    assert (tmp_path / "g.onnx").read_bytes() != (
        played.state_dirs["ann"] / "models" / "digits" / "current" / "model.onnx"
    ).read_bytes()
