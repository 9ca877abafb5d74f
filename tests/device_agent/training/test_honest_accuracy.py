"""The personal model is chosen on validation data and reported on test data; training sees neither."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.state.patch_store import PatchStore
from fedpatch.device_agent.training.device_data import ReloadingDataset
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.device_agent.training.model_export import ModelExport
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.validation_split import split_for
from fedpatch.shared.wire.messages import TrainPlan
from tests.device_agent.device_rounds import Scene
from tests.device_agent.toy_tasks import FEATURES, TOY, accuracy

PLAN = TrainPlan("sgd", 0.5, 20, seed=1)
DEVICES, ROUNDS = 10, 12


class Device:
    """A device that publishes the models of its rounds, and treats every update as committed."""

    def __init__(self, folder: Path, task: Task, data: DeviceData) -> None:
        folder.mkdir()
        self.trainer = LocalTrainer(task, data)
        self._scene = Scene(folder, task, PLAN, "all")
        self._models = ModelStore(folder / "models")
        self.update = LocalUpdate(
            self.trainer,
            PatchStore(folder / "patches"),
            folder.name,
            export=ModelExport(self.trainer, self._models, keep_margin=0.0),
        )

    def play(self, rounds: int) -> PersonalModel:
        """Run rounds, each of them committed; return the model that is published at their end."""
        for round in range(1, rounds + 1):
            assert self.update.run(self._scene.command(round=round), lambda *_: None, lambda: False) is not None
            self.update.make_model()
            self._models.publish("toy", "run", round)
        path = self._models.current("toy")
        assert path is not None
        return PersonalModel(path)


def _coin_flips(seed: int, train: int = 120, test: int = 30) -> DeviceData:
    """Labels that no model can predict: the honest accuracy of any model is a half."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(train + test, FEATURES)).astype(np.float32)
    y = rng.integers(0, 2, train + test)
    return DeviceData(x[:train], y[:train], x[train:], y[train:])


@pytest.mark.medium
@pytest.mark.parametrize("ordered", [False, True])
def test_the_reported_figure_is_what_the_published_model_scores_on_new_data(tmp_path, ordered):
    """Ten devices choose among the models of twelve rounds; the mean of their reports is that on two thousand new examples.

    Models that were chosen on the thirty test examples reported 0.63 and scored 0.50.
    """
    task = replace(TOY, validation_share=0.1, ordered=ordered)
    reported, honest, chosen = [], [], []
    for index in range(DEVICES):
        device = Device(tmp_path / f"device-{index}", task, split_for(task, _coin_flips(index)))
        model = device.play(ROUNDS)
        new = _coin_flips(1000 + index, test=2000)
        outputs = torch.from_numpy(model.predict(new.test_x))
        honest.append(accuracy(outputs, torch.from_numpy(new.test_y)))
        reported.append(model.metadata.user_accuracy or 0.0)
        chosen.append(model.metadata.validation_accuracy or 0.0)
    assert np.mean(honest) == pytest.approx(0.5, abs=0.02)
    assert np.mean(reported) == pytest.approx(np.mean(honest), abs=0.06)
    assert np.mean(chosen) > np.mean(honest) + 0.1  # the figure of the choice is too high to report


class _Watched(nn.Module):
    """The toy model, which records its training examples: the first feature of each example is its number."""

    seen: set[int]

    def __init__(self) -> None:
        super().__init__()
        self.inner = TOY.build_model()
        self.seen = set()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen |= {int(number) for number in x[:, 0].tolist()}
        return self.inner(x)  # type: ignore[no-any-return]


def _numbered(count: int, first: int, targets: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    x = np.zeros((count, FEATURES), np.float32)
    x[:, 0] = np.arange(first, first + count)
    return x, np.arange(count) % 3 if targets is None else targets


@pytest.mark.parametrize("made_by", ["task", "split", "time"])
def test_training_sees_neither_validation_nor_test_examples(tmp_path, made_by):
    labels: set[int] = set()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        labels.update(targets.tolist())
        return F.cross_entropy(outputs, targets % 3)

    train = _numbered(100, 0, np.arange(100))
    data = DeviceData(*train, *_numbered(20, 1000))
    if made_by == "task":
        data = replace(data, val_x=_numbered(30, 500)[0], val_y=_numbered(30, 500)[1])
    task = replace(TOY, validation_share=0.1, build_model=_Watched, loss=loss, ordered=made_by == "time")
    split = split_for(task, data)
    device = Device(tmp_path / "ann", task, split)
    device.play(4)
    assert split.val_x is not None and len(split.val_x) > 5
    trained = set(split.train_x[:, 0].astype(int).tolist())
    assert isinstance(device.trainer.model, _Watched)
    assert device.trainer.model.seen == trained == labels
    assert not trained & set(split.val_x[:, 0].astype(int).tolist())
    assert len(trained) == (100 if made_by == "task" else 100 - len(split.val_x))


def _counting_task(ordered: bool) -> Task:
    """A task with a number of examples from a file, out of an endless sequence; each new one is added at the end."""

    def data_version(spec: str, root: Path) -> str:
        return (root / spec).read_text()

    def load_data(spec: str, root: Path) -> DeviceData:
        rng = np.random.default_rng(5)
        x = rng.normal(size=(1000, FEATURES)).astype(np.float32)
        y = rng.integers(0, 3, 1000)
        count = int(data_version(spec, root))
        return DeviceData(x[100:][:count], y[100:][:count], x[:100], y[:100])

    return replace(TOY, validation_share=0.1, load_data=load_data, data_version=data_version, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_device_whose_data_grow_holds_out_nothing_that_it_has_trained_on(tmp_path, ordered):
    task = _counting_task(ordered)
    count = tmp_path / "count"
    trained: set[bytes] = set()
    growing = ReloadingDataset(task, "count", tmp_path)
    for step, examples in enumerate((60, 61, 90, 300, 299, 700)):
        count.write_text(str(examples))
        if step in (0, 3):
            data = ReloadingDataset(task, "count", tmp_path).load()
            growing.load()
        else:
            changed = growing.load_changed()
            assert changed is not None
            data = changed
        assert data.val_x is not None and len(data.val_x) >= 3
        assert len(data.train_x) + len(data.val_x) == examples
        if not (ordered and examples == 299):  # the loss of the last example moves the last tenth back
            assert not trained & {row.tobytes() for row in data.val_x}
        trained |= {row.tobytes() for row in data.train_x}


def test_the_number_of_examples_is_that_of_the_training_examples(tmp_path):
    task = _counting_task(ordered=True)
    (tmp_path / "count").write_text("60")
    data = ReloadingDataset(task, "count", tmp_path)
    device = Device(tmp_path / "ann", task, data.load())
    assert device.trainer.num_examples == 54
    update = LocalUpdate(device.trainer, PatchStore(tmp_path / "patches"), "ann", data=data)
    (tmp_path / "count").write_text("100")
    assert update.take_new_data() == 90
    done = update.run(Scene(tmp_path, task, PLAN, "all").command(), lambda *_: None, lambda: False)
    assert done is not None
    assert (done[1].num_examples, done[1].steps) == (90, round(90 / 20))
