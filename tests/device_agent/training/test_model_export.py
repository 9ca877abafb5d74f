"""The result of a round for the applications of the device: the trained model, if it is good enough."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedpatch.device_agent.models.store import ModelStore, StoredModel
from fedpatch.device_agent.state.model_cache import ModelCache
from fedpatch.device_agent.state.patch_store import PERSONAL, PatchKey, PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.device_agent.training.model_export import ModelExport
from fedpatch.shared.errors import StateError
from fedpatch.shared.tasks.torch_model import load_tensors, to_tensors
from fedpatch.shared.wire.messages import is_delta
from fedpatch.shared.wire.plan_terms import PersonalCopy, make_terms
from tests.device_agent.device_rounds import ADAM, POLICIES
from tests.device_agent.exporting_device import Device, task_scored
from tests.device_agent.toy_tasks import TOY


@pytest.mark.parametrize("private", POLICIES)
def test_a_round_leaves_the_model_that_it_trained(tmp_path, private):
    """Global values and patch, both after training: the outputs are those of the trained module, with every policy."""
    device = Device(tmp_path, private=private)
    report = device.play(1)
    personal = device.personal
    with torch.no_grad():
        expected = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    np.testing.assert_allclose(personal.predict(device.data.test_x), expected, atol=1e-4)
    known = personal.metadata
    assert (known.kind, known.task, known.run, known.round, known.private) == ("personal", "toy", "run", 1, private)
    assert known.private_values == ("none" if private == "none" else "trained")
    assert (known.user_accuracy_before, known.user_accuracy) == (
        report.user_accuracy_before,
        report.user_accuracy_after,
    )
    assert (known.schema, known.test_examples) == (device.trainer.schema.digest, 20)
    assert (known.input_shape, known.input_dtype, known.output_shape) == ((12,), "float32", (3,))


def test_the_model_holds_this_devices_patch_and_not_the_initial_one(tmp_path):
    device = Device(tmp_path)
    device.play(1)
    inputs = device.data.test_x
    before = device.personal.predict(inputs)
    initial = {"bn.weight": np.ones(8, np.float32), "bn.bias": np.zeros(8, np.float32)}
    load_tensors(device.trainer.model, to_tensors(device.trainer.model) | initial)
    with torch.no_grad():
        assert np.abs(device.trainer.model.eval()(torch.from_numpy(inputs)).numpy() - before).max() > 0.01


def test_a_round_that_is_not_committed_changes_nothing(tmp_path):
    device = Device(tmp_path)
    device.play(1)
    device.train(2)
    assert device.personal.metadata.round == 1
    device.train(3)
    assert device.models.publish("toy", "run", 2) is None
    assert device.models.publish("toy", "run", 3) is not None
    assert device.personal.metadata.round == 3


def test_a_cancelled_round_leaves_no_model(tmp_path):
    device = Device(tmp_path)
    assert device.local_update.run(device.scene.command(), lambda *_: None, lambda: True) is None
    assert device.models.publish("toy", "run", 1) is None


def test_cancelled_round_makes_the_update_and_no_model(tmp_path):
    device = Device(tmp_path)
    device.play(1)
    command = device.scene.command(round=2)
    assert device.local_update.run(command, lambda *_: None, lambda: False) is not None
    assert (tmp_path / "update").exists()
    device.local_update.make_model(lambda: True)
    assert device.models.publish("toy", "run", 2) is None
    assert device.models.kept("toy") == StoredModel("run", 2, "work had to stop before it was made")
    device.play(3)
    assert device.personal.metadata.round == 3


def test_a_model_that_cannot_be_exported_costs_no_round(tmp_path, caplog):
    device = Device(tmp_path)
    device.play(1)
    device.trainer.task = replace(TOY, class_names=("a", "b"))
    assert device.play(2).steps == 5
    assert "names 2 classes, but its model gives outputs of shape (3,)" in caplog.text
    device.trainer.task = replace(TOY, metric=_failing_third())
    assert device.play(3).steps == 5
    assert "ZeroDivisionError" in caplog.text
    kept = device.models.kept("toy")
    assert kept is not None
    assert kept.round == 3
    assert device.personal.metadata.round == 1


def _failing_third() -> Any:
    left = [0.5, 0.5]

    def metric(outputs: Any, targets: Any) -> float:
        return left.pop() if left else 1 / 0

    return metric


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_model_whose_test_figure_is_no_number_is_not_published(tmp_path, score):
    left = [0.5, 0.5, score]
    device = Device(tmp_path, task_scored(left))
    device.play(1)
    assert device.models.current("toy") is None


def test_a_device_that_does_not_count_has_a_model_all_the_same(tmp_path):
    device = Device(tmp_path)
    device.trainer.counts_in_ua = False
    assert device.play(1).user_accuracy_after is None
    known = device.personal.metadata
    assert known.user_accuracy_before is None
    assert known.user_accuracy is not None


def test_a_disk_that_refuses_costs_no_round(tmp_path, caplog, monkeypatch):
    device = Device(tmp_path)
    device.play(1)

    def refuse(*_: object) -> None:
        raise StateError("models: no space left; free some space on this disk")

    monkeypatch.setattr(ModelStore, "stage", refuse)
    assert device.play(2).steps == 5
    assert "round 2 gives no other: models: no space left" in caplog.text
    assert device.personal.metadata.round == 1


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_an_export_that_ends_its_process_is_given_up(tmp_path, caplog, deaths):
    """After the second time rounds continue without a model. An agent tries it again after its next start."""
    device = Device(tmp_path)
    device.models.prepare("toy")
    for _ in range(deaths):
        device.models.attempts.begin("toy")  # an attempt that never finishes
    assert device.play(1).steps == 5
    assert (device.models.current("toy") is None) == (deaths >= 2)
    assert ("ended its process 2 times" in caplog.text) == (deaths >= 2)
    device.models.attempts.forget()
    device.play(2)
    assert device.personal.metadata.round == 2


def test_training_is_the_same_with_and_without_an_export(tmp_path):
    patches = []
    for with_export in (True, False):
        folder = tmp_path / str(with_export)
        folder.mkdir()
        device = Device(folder)
        if not with_export:
            device.local_update._export = None
        for round in (1, 2, 3):
            device.train(round)
        patches.append(b"".join(path.read_bytes() for path in (folder / "patches").glob("*.patch")))
    assert patches[0] == patches[1]


def test_the_metadata_is_json_for_anybody(tmp_path):
    device = Device(tmp_path)
    device.play(1)
    known = json.loads((device.personal.path / "metadata.json").read_text())
    assert known["task"] == "toy"
    assert known["sha256"] == device.personal.metadata.sha256
    assert known["parity"] <= 1e-4


@pytest.mark.parametrize("private", POLICIES)
@pytest.mark.parametrize("encoding", ["fp32+zstd", "delta-int8"])
def test_model_made_again_after_a_restart_is_that_of_the_round(tmp_path, private, encoding):
    """From the waiting update and the patch: exact if the encoding keeps every bit, else as the coordinator has it."""
    device = Device(tmp_path, private=private)
    held = ModelCache(tmp_path / "held")
    store = PatchStore(tmp_path / "patches")
    device.local_update = LocalUpdate(device.trainer, store, "ann", held=held, private=private)
    command = device.scene.command(encoding=encoding, hold=is_delta(encoding))
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    with torch.no_grad():
        trained = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    other = LocalTrainer(TOY, device.data)
    export = ModelExport(other, ModelStore(tmp_path / "models"), 1.0)
    restarted = LocalUpdate(other, store, "ann", export=export, held=held, private=private)
    restarted.make_model_again(replace(command, blob=None), done[0])
    assert device.models.publish("toy", "run", 1) is not None
    found = device.personal.predict(device.data.test_x)
    np.testing.assert_allclose(found, trained, atol=1e-4 if encoding == "fp32+zstd" else 0.1)
    assert device.personal.metadata.user_accuracy_before == done[1].user_accuracy_before


def test_personal_copy_becomes_the_model_after_a_restart_too(tmp_path):
    """The reported accuracies are those of the copy."""
    device = Device(tmp_path, private="none")
    ditto = replace(ADAM, personal=PersonalCopy("ditto", 0.1))
    report = device.play(1, plan=ditto)
    copy = PatchStore(tmp_path / "patches" / PERSONAL).load(
        PatchKey("toy", device.trainer.schema.digest, "none ditto"), "run", 2
    )
    device.trainer.load(copy.values)
    with torch.no_grad():
        expected = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), expected, atol=1e-4)
    assert device.personal.metadata.user_accuracy == report.user_accuracy_after
    assert device.personal.metadata.private_values == "trained"
    command = device.scene.command(round=2, plan=ditto)
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    with torch.no_grad():
        expected = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    other = LocalTrainer(TOY, device.data)
    export = ModelExport(other, ModelStore(tmp_path / "models"), 1.0)
    restarted = LocalUpdate(other, PatchStore(tmp_path / "patches"), "ann", export=export, private="none")
    restarted.make_model_again(command, done[0])
    assert device.models.publish("toy", "run", 2) is not None
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), expected, atol=1e-4)


def outputs_of(device: Device) -> np.ndarray:
    """Outputs of the model that the trainer holds, on the test data."""
    with torch.no_grad():
        found: np.ndarray = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    return found


def test_finished_model_becomes_the_model_after_a_round_and_after_an_evaluate_round(tmp_path):
    """After a restart too; the reported accuracies are those of the finished model."""
    device = Device(tmp_path, private="affine")
    plan = replace(ADAM, **make_terms(0.0, "public:1", finish="private:2"))
    command = device.scene.command(plan=plan)
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    expected = outputs_of(device)
    other = LocalTrainer(TOY, device.data)
    export = ModelExport(other, ModelStore(tmp_path / "models"), 1.0)
    restarted = LocalUpdate(other, PatchStore(tmp_path / "patches"), "ann", export=export, private="affine")
    restarted.make_model_again(command, done[0])
    assert device.models.publish("toy", "run", 1) is not None
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), expected, atol=1e-4)
    assert device.personal.metadata.user_accuracy == done[1].user_accuracy_after
    other_model = {name: (value + 0.5).astype(value.dtype) for name, value in device.scene.initial().items()}
    command = device.scene.command(other_model, round=2, plan=plan, evaluate=True)
    measured = device.local_update.evaluate(command, lambda: False)
    assert measured is not None
    assert np.abs(outputs_of(device) - expected).max() > 0.01
    device.local_update.make_model()
    assert device.models.publish("toy", "run", 2) is not None
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), outputs_of(device), atol=1e-4)
    assert device.personal.metadata.user_accuracy == pytest.approx(measured.user_accuracy)


def test_model_put_off_is_the_one_that_was_trained(tmp_path):
    """While the process lives it does not read the update, which may be gone."""
    device = Device(tmp_path)
    command = device.scene.command(encoding="delta-int8", hold=True)
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    (tmp_path / "update").unlink()
    device.local_update.make_model_again(replace(command, blob=None), done[0])
    assert device.models.publish("toy", "run", 1) is not None
    with torch.no_grad():
        expected = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), expected, atol=1e-4)


def test_model_that_cannot_be_made_again_costs_a_line_in_the_log(tmp_path, caplog):
    device = Device(tmp_path)
    device.play(1)
    command = device.scene.command(round=2)
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    (tmp_path / "update").write_bytes(b"damaged")
    export = ModelExport(device.trainer, ModelStore(tmp_path / "models"), 1.0)
    restarted = LocalUpdate(device.trainer, PatchStore(tmp_path / "patches"), "ann", export=export)
    restarted.make_model_again(command, done[0])
    assert "was switched off before it was made" in caplog.text
    assert device.personal.metadata.round == 1
