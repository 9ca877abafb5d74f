"""A device that exports the personal model of each round, and tasks whose metric has given figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.state.patch_store import PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.device_agent.training.model_export import ModelExport
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.wire.messages import UpdateReport
from tests.device_agent.device_rounds import ADAM, Scene
from tests.device_agent.toy_tasks import TOY, random_data

VALIDATION = 15


class Device:
    """A device with a store of models, which treats every update as committed."""

    def __init__(self, folder: Path, task: Task = TOY, private: str = "affine", keep_margin: float = 1.0) -> None:
        self.scene = Scene(folder, task, ADAM, private)
        held_out = random_data("ann", 24)
        self.data = replace(
            random_data("ann", 23), val_x=held_out.test_x[:VALIDATION], val_y=held_out.test_y[:VALIDATION]
        )
        self.trainer = LocalTrainer(task, self.data)
        self.models = ModelStore(folder / "models", 3)
        export = ModelExport(self.trainer, ModelStore(folder / "models"), keep_margin)
        store = PatchStore(folder / "patches")
        self.local_update = LocalUpdate(self.trainer, store, "ann", export=export, private=private)

    def train(self, round: int, **changes: Any) -> UpdateReport:
        done = self.local_update.run(self.scene.command(round=round, **changes), lambda *_: None, lambda: False)
        assert done is not None
        self.local_update.make_model()
        return done[1]

    def play(self, round: int, **changes: Any) -> UpdateReport:
        report = self.train(round, **changes)
        self.models.publish("toy", "run", round)
        return report

    @property
    def personal(self) -> PersonalModel:
        path = self.models.current("toy")
        assert path is not None
        return PersonalModel(path)


def task_scored(left: list[float], goal: str = "max") -> Task:
    """The toy task with a metric that returns the numbers in `left`, in turn.

    Order: before and after training; the new model on test data and on validation data; the present one on validation data.
    """
    task = replace(TOY, metric=lambda outputs, targets: left.pop(0))
    object.__setattr__(task, "metric_goal", goal)
    return task


def without_validation(device: Device) -> Any:
    return replace(device.data, val_x=device.data.train_x[:0], val_y=device.data.train_y[:0])
