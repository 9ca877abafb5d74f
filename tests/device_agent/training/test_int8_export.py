"""The int8 model beside the personal model: made of the digits' 2NN, or left out with one log line."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpatch.device_agent.bus.service import Bus, topics_of
from fedpatch.device_agent.bus.settings import BusSettings
from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.state.patch_store import PatchStore
from fedpatch.device_agent.training.forked_work import run_forked
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.device_agent.training.model_export import ModelExport
from fedpatch.shared.errors import StateError
from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.onnx.quantisation import MIN_EXAMPLES
from fedpatch.shared.tasks.bundled.digits import TASK as DIGITS
from fedpatch.shared.tasks.model_metadata import INT8_FILE
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.wire.messages import TrainPlan
from tests.device_agent.device_rounds import Scene

MARGIN = 0.05
torch.set_num_threads(1)  # a fork does not copy the threads of torch's pool


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> DeviceData:
    return DIGITS.load_data("shard:0/4,validation=0.2", tmp_path_factory.mktemp("data"))


class Device:
    """A device with an int8 model; `play` runs one committed round."""

    def __init__(self, folder: Path, task: Task, data: DeviceData, margin: float = MARGIN, **export: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.scene = Scene(folder, task, TrainPlan("sgd", 0.1, 20, epochs=10, seed=1), "none")
        self.trainer, self.state_dir = LocalTrainer(task, data), folder
        self.store = ModelStore(folder / "models")
        made = ModelExport(self.trainer, self.store, margin, keep_int8=True, **export)
        self.update = LocalUpdate(self.trainer, PatchStore(folder / "patches"), "ann", export=made, private="none")

    def play(self, round: int = 1) -> PersonalModel:
        assert self.update.run(self.scene.command(round=round), lambda *_: None, lambda: False)
        self.update.make_model()
        self.store.publish(self.trainer.task.name, "run", round)
        return PersonalModel.open(self.state_dir, int8=True)


def test_int8_model_of_the_digits_is_smaller_and_no_worse_and_the_files_agree(tmp_path, digits):
    """The model is made in a child process, as by an agent, so that its memory is released."""
    device = Device(tmp_path, DIGITS, digits, run=run_forked)
    model, fp32 = device.play(), PersonalModel.open(tmp_path)
    known = model.metadata.int8
    assert (model.is_int8, fp32.is_int8) == (True, False)
    assert known is not None
    assert known.size_bytes == (model.path / INT8_FILE).stat().st_size < model.metadata.size_bytes / 2
    assert model.metadata.validation_accuracy is not None
    assert known.validation_accuracy >= model.metadata.validation_accuracy - MARGIN
    right = model.predict(digits.test_x).argmax(axis=1) == digits.test_y
    assert known.user_accuracy == pytest.approx(right.mean())
    assert right.mean() >= 0.85
    assert 0 < known.latency_s < 1
    assert 0 < known.fp32_latency_s < 1
    assert not np.array_equal(model.predict(digits.test_x), fp32.predict(digits.test_x))
    assert list(device.store.problems()) == []


def test_bus_serves_the_int8_model_where_it_is_asked_to(tmp_path, digits):
    model = Device(tmp_path, DIGITS, digits).play()
    sent: list[Any] = []
    for int8 in (False, True):
        settings = BusSettings(state_dir=tmp_path, device_id="pi", serve=("in -> out",), switch=False, int8=int8)
        bus = Bus(settings, topics_of(settings), lambda topic, payload, retain: sent.append(payload))
        bus.look(0.0)
        bus.take(Received("in", json.dumps({"values": digits.test_x[0].ravel().tolist()}).encode(), False))
    answers = [json.loads(payload)["outputs"] for payload in sent]
    np.testing.assert_allclose(answers[1], model.predict(digits.test_x[:1])[0], atol=1e-5)
    assert answers[0] != answers[1]


def test_damaged_int8_file_is_an_error_and_a_problem_and_fp32_still_opens(tmp_path, digits):
    device = Device(tmp_path, DIGITS, digits)
    path = device.play().path / INT8_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StateError, match="damaged"):
        PersonalModel.open(tmp_path, int8=True)
    assert not PersonalModel.open(tmp_path).is_int8
    assert [INT8_FILE in problem for problem, _ in device.store.problems()] == [True]


class _Scaled(nn.Module):
    """A model of ten weights, which int8 makes no smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :10].sin() * self.scale


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("operator", "it is no smaller in int8"),
        ("few", f"20 training examples are too few to calibrate it; it needs {MIN_EXAMPLES}"),
        ("worse", "is worse than"),
        ("no_validation", "there are no validation data"),
        ("broken", "cannot be quantised: RuntimeError: no kernel"),
    ],
)
def test_where_int8_is_not_to_be_had_fp32_stays_with_one_line_of_the_log(
    tmp_path, digits, caplog, monkeypatch, bad, words
):
    caplog.set_level(logging.WARNING)
    task, data, margin = DIGITS, digits, MARGIN
    if bad == "operator":
        task = replace(DIGITS, build_model=_Scaled)
    if bad == "few":
        data = replace(digits, train_x=digits.train_x[:20], train_y=digits.train_y[:20])
    if bad == "no_validation":
        data = replace(digits, val_x=None, val_y=None)
    device = Device(tmp_path, task, data, margin)
    if bad == "worse":
        scores = iter([1.0, 1.0, 1.0, 0.9, 0.9 - 2 * MARGIN])
        device.trainer.task = replace(DIGITS, metric=lambda outputs, targets: next(scores))
    if bad == "broken":

        def fails(*given: object, **named: object) -> None:
            raise RuntimeError("no kernel")

        monkeypatch.setattr("onnxruntime.quantization.quantize_static", fails)
    model = device.play()
    assert (model.is_int8, model.metadata.int8, model.metadata.round) == (False, None, 1)
    assert not (model.path / INT8_FILE).exists()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("personal model: round 1 has no int8 model: ")
    assert words in line
    assert list(device.store.problems()) == []
