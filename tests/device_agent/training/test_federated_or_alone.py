"""The personal model is the better of the federated one and the one trained alone, or the present one stays."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.state.patch_store import ALONE as POLICY
from fedpatch.device_agent.state.patch_store import PatchKey, PatchRecord, PatchState, PatchStore, list_patches
from fedpatch.device_agent.training.alone_schedule import FIRST_ROUNDS, AloneSchedule
from fedpatch.device_agent.training.federated_or_alone import choose
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.device_agent.training.model_export import ModelExport
from fedpatch.shared.errors import StateError
from fedpatch.shared.tasks.model_metadata import ALONE, FEDERATED, PREVIOUS
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import to_tensors
from tests.device_agent.device_rounds import SGD, Scene
from tests.device_agent.disk_change_killer import Guillotine
from tests.device_agent.toy_tasks import TOY, random_data

RULES = random_data("ann", 60)
CHOOSING = replace(RULES, val_x=RULES.test_x, val_y=RULES.test_y)


class Device:
    """A device that trains alone by schedule, and treats every update as committed.

    Its own model is better than the federated one, since the global model is far from any model that fits.
    """

    def __init__(
        self, folder: Path, task: Task = TOY, every: int = 10, margin: float = 1.0, validates: bool = True
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.patches = folder, folder / "patches"
        self.scene = Scene(folder, task, replace(SGD, epochs=2), "affine")
        self.model = {name: 30 * value for name, value in self.scene.initial().items()}
        self.trainer = LocalTrainer(task, CHOOSING if validates else RULES)
        self.models = ModelStore(folder / "models", 3)
        export = ModelExport(self.trainer, self.models, margin)
        self.update = LocalUpdate(self.trainer, PatchStore(self.patches), "ann", export=export, alone_every=every)

    def train(self, round: int, **changes: Any) -> None:
        fields = {"ends_at": time.monotonic() + 1e6, **changes}
        assert self.update.run(self.scene.command(self.model, round=round, **fields), lambda *_: None, lambda: False)
        self.update.make_model()

    def play(self, round: int, **changes: Any) -> None:
        self.train(round, **changes)
        self.models.publish("toy", changes.get("key", JobKey("run", 1, 1, "toy")).run, round)

    @property
    def personal(self) -> PersonalModel:
        path = self.models.current("toy")
        assert path is not None
        return PersonalModel(path)

    def alone(self) -> PatchState:
        key = PatchKey("toy", self.trainer.schema.digest, POLICY)
        return PatchStore(self.patches / "independent").load(key, "another run", 0)


def outputs(trainer: LocalTrainer, tensors: Any) -> Any:
    trainer.load(tensors)
    with torch.no_grad():
        return trainer.model.eval()(torch.from_numpy(RULES.test_x)).numpy()


def scored(*scores: float, goal: str = "max") -> LocalTrainer:
    """A trainer whose metric returns the scores in turn."""
    left = list(scores)
    task = replace(TOY, metric=lambda outputs, targets: left.pop(0))
    object.__setattr__(task, "metric_goal", goal)
    return LocalTrainer(task, CHOOSING)


def test_device_whose_own_model_is_better_publishes_that_and_says_why(tmp_path, caplog):
    device = Device(tmp_path)
    caplog.set_level("INFO", logger="fedpatch.models")
    for round in range(1, FIRST_ROUNDS + 1):
        device.play(round)
    known = device.personal.metadata
    assert (known.source, known.round) == (ALONE, FIRST_ROUNDS)
    alone, federated = known.candidates[ALONE], known.candidates[FEDERATED]
    assert alone > federated
    assert known.validation_accuracy == alone
    assert f"accuracy {alone:.4g} alone" in known.reason
    assert "trained alone" in caplog.text
    held = to_tensors(device.trainer.model)
    expected = outputs(device.trainer, device.alone().values)
    np.testing.assert_allclose(device.personal.predict(RULES.test_x), expected, atol=1e-4)
    assert not np.allclose(expected, outputs(device.trainer, held), atol=1e-2)


def test_export_of_the_model_trained_alone_leaves_the_rounds_model_in_the_trainer(tmp_path):
    device, plain = Device(tmp_path / "alone"), Device(tmp_path / "plain", every=0)
    for round in range(1, 4):
        device.play(round)
        plain.play(round)
    assert (device.personal.metadata.source, plain.personal.metadata.source) == (ALONE, FEDERATED)
    for name, value in to_tensors(plain.trainer.model).items():
        np.testing.assert_array_equal(to_tensors(device.trainer.model)[name], value)


def test_training_alone_by_schedule_changes_nothing_that_leaves(tmp_path):
    device, plain = Device(tmp_path / "alone"), Device(tmp_path / "plain", every=0)
    for round in (1, 2):
        for one in (device, plain):
            command = one.scene.command(one.model, round=round, ends_at=time.monotonic() + 1e6)
            done = one.update.run(command, lambda *_: None, lambda: False)
            assert done is not None
            meta, tensors = one.scene.update(done[0])
            meta.pop("train_s")
            if one is device:
                expected = meta, tensors
        assert meta == expected[0]
        assert "user_accuracy_independent" not in meta
        for name, value in tensors.items():
            np.testing.assert_array_equal(value, expected[1][name])


score = st.one_of(st.floats(0, 1), st.just(0.5))


@given(federated=score, alone=score, goal=st.sampled_from(("max", "min")))
def test_candidate_is_never_worse_than_alone_on_validation_and_a_tie_is_federated(federated, alone, goal):
    trainer = scored(federated, alone, goal=goal)
    values = to_tensors(trainer.model)
    choice = choose(trainer, values, lambda: values)
    sign = 1 if goal == "max" else -1
    chosen = {FEDERATED: federated, ALONE: alone}[choice.source]
    assert sign * chosen == max(sign * federated, sign * alone)
    assert choice.source == (ALONE if sign * alone > sign * federated else FEDERATED)


def test_present_model_that_is_better_than_both_stays(tmp_path):
    left: list[float] = []
    device = Device(tmp_path, replace(TOY, metric=lambda outputs, targets: left.pop(0)), every=1, margin=0.0)
    # Order: before and after the round; the model trained alone on test data; both models on validation data; the better
    # one on test data and on validation data; the present one.
    left += [0.5, 0.5, 0.5, 0.7, 0.8, 0.5, 0.8]
    device.play(1)
    assert device.personal.metadata.source == ALONE
    left += [0.5, 0.5, 0.5, 0.75, 0.6, 0.5, 0.75, 0.8]
    device.play(2)
    assert (device.personal.metadata.round, left) == (1, [])
    kept = device.models.kept("toy")
    assert kept is not None
    assert "0.75 of round 2 is worse than the present model's 0.8" in kept.why
    left += [0.5, 0.5, 0.5, 0.85, 0.6, 0.5, 0.85, 0.8]
    device.play(3)
    known = device.personal.metadata
    assert (known.round, known.source) == (3, FEDERATED)
    assert known.candidates == {FEDERATED: 0.85, ALONE: 0.6, PREVIOUS: 0.8}


@pytest.mark.parametrize(
    ("validated", "tested", "chosen"),
    [([1] * 6, [0, 1], FEDERATED), ([1] * 6, [1, 1], ALONE), ([0, 1] * 3, [0, 1], ALONE)],
    ids=["one class", "one class in both", "both classes"],
)
def test_nothing_is_chosen_by_validation_data_of_one_class_unless_the_test_data_have_no_other(
    validated, tested, chosen
):
    """A model that always answers this class would be right on all of them."""
    trainer = scored(0.2, 1.0)
    object.__setattr__(trainer.task, "class_names", ("low", "high"))
    data = random_data("ann", 40)
    data = replace(data, val_x=data.train_x[: len(validated)], val_y=np.array(validated))
    trainer.take(replace(data, test_x=data.train_x[: len(tested)], test_y=np.array(tested)))
    values = to_tensors(trainer.model)
    choice = choose(trainer, values, lambda: values)
    assert choice.source == chosen
    assert ("validation data have one class" in choice.reason) == (chosen == FEDERATED)


def test_state_that_cannot_be_read_costs_the_federated_model_nothing(caplog):
    def damaged() -> Any:
        raise StateError("the file is damaged")

    choice = choose(scored(), {}, damaged)
    assert choice.source == FEDERATED
    assert "the file is damaged" in caplog.text


@given(every=st.integers(1, 50), steps=st.integers(1, 40), rounds=st.integers(1, 200))
def test_schedule_costs_the_first_rounds_and_one_training_in_every_so_many(every, steps, rounds):
    alone = 0
    schedule = AloneSchedule(every)
    for round in range(1, rounds + 1):
        alone += steps * schedule.is_due(steps=steps, taken=round * steps, alone=alone)
    assert alone // steps >= min(rounds, FIRST_ROUNDS)
    assert alone // steps <= FIRST_ROUNDS + rounds // every
    assert not AloneSchedule(0).is_due(steps=steps, taken=steps, alone=0)


@pytest.mark.parametrize("why", ["off", "no_validation", "owner", "no_deadline", "no_models"])
def test_nothing_is_trained_alone_where_it_protects_nothing_or_exceeds_a_limit(tmp_path, why):
    device = Device(tmp_path, every=0 if why == "off" else 1, validates=why != "no_validation")
    if why == "owner":
        device.update.bound(max_steps=device.scene.plan.steps_for(len(RULES.train_x)), max_epochs=0)
    if why == "no_models":
        device.update = LocalUpdate(device.trainer, PatchStore(device.patches), "ann", alone_every=1)
    device.train(1, **({"ends_at": 0.0} if why == "no_deadline" else {}))
    assert not (device.patches / "independent").exists()


def test_state_is_on_the_disk_after_the_round_and_a_new_process_chooses_it(tmp_path):
    device = Device(tmp_path)
    for round in range(1, 4):
        device.play(round)
    assert device.alone().batches_done == 3 * device.scene.plan.steps_for(len(RULES.train_x))
    later = Device(tmp_path)  # no flush: the first process was killed
    later.play(4)
    assert later.alone().batches_done == device.alone().batches_done
    assert later.personal.metadata.candidates[ALONE] == device.personal.metadata.candidates[ALONE]


def test_another_run_trains_alone_anew_and_the_present_model_protects_meanwhile(tmp_path):
    device = Device(tmp_path, margin=0.0)
    for round in range(1, 4):
        device.play(round)
    best = device.personal.metadata.validation_accuracy
    assert best is not None
    device.play(1, key=JobKey("another", 1, 1, "toy"))
    assert device.alone().batches_done == device.scene.plan.steps_for(len(RULES.train_x))
    found = device.personal.metadata.validation_accuracy
    assert found is not None
    assert found >= best


def test_state_of_another_schema_of_the_task_is_dropped(tmp_path):
    device = Device(tmp_path)
    store = PatchStore(device.patches / "independent")
    for task in ("toy", "other"):
        for round in (1, 2):
            state = PatchState({"w": np.ones(2, np.float32)}, round)
            store.save(PatchRecord(PatchKey(task, "old schema", POLICY), "run", round, PatchState(), state))
    device.play(1)
    entries = {(one.task, one.schema) for one in list_patches(store.directory)}
    assert entries == {("other", "old schema"), ("toy", device.trainer.schema.digest)}
    assert len(list(store.directory.glob("toy-*"))) == 1


@pytest.mark.medium
def test_killed_before_any_change_of_the_disk_one_of_the_three_is_published(tmp_path_factory):
    deaths = 0
    first = Device(tmp_path_factory.mktemp("first") / "device")
    first.play(1)
    first.play(2)
    before = first.personal.predict(RULES.test_x)
    for fatal in range(1, 200):
        device = Device(shutil.copytree(first.folder, tmp_path_factory.mktemp("killed") / "device", symlinks=True))
        changes = Guillotine(fatal).run(partial(device.play, 3))
        found = Device(device.folder).personal.predict(RULES.test_x)
        federated = outputs(device.trainer, to_tensors(device.trainer.model))
        alone = outputs(device.trainer, device.alone().values)
        assert any(np.allclose(found, one, atol=1e-4) for one in (before, federated, alone)), fatal
        Device(device.folder).play(3)  # the round is asked for once more
        assert Device(device.folder).personal.metadata.round == 3
        if changes < fatal:
            break
        deaths += 1
    assert deaths > 20


def test_without_validation_data_the_federated_model_stays_and_the_other_is_not_even_read():
    """Training or test data would prefer the model that has learned them by heart."""
    trainer = LocalTrainer(TOY, RULES)
    federated = {name: value + 0 for name, value in to_tensors(trainer.model).items()}

    def alone() -> dict[str, Any]:
        raise AssertionError("the model trained alone was read")

    found = choose(trainer, federated, alone)
    assert (found.source, found.reason) == (FEDERATED, "no validation data to choose on")
    assert all(np.array_equal(value, federated[name]) for name, value in to_tensors(trainer.model).items())
