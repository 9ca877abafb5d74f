"""The measure of learning alone: training on the device's own data only, at no risk to the round."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.same_work import continues
from fedpatch.device_agent.policy.private_floor import PrivateFloor
from fedpatch.device_agent.state.patch_store import PatchStore, kept_in_patches, list_patches
from fedpatch.device_agent.training.batches import batch_indices, stream_seed
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.errors import StateError, UpdateRefused
from fedpatch.shared.tasks.torch_model import initial_tensors, load_tensors
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.features import COORDINATOR_FEATURES
from tests.device_agent.device_rounds import ADAM, SGD, Scene
from tests.device_agent.disk_change_killer import Guillotine, Killed
from tests.device_agent.jobs import REQUEST
from tests.device_agent.toy_tasks import TOY, random_data

LIMIT_S = 1e6


class Device:
    """A device with 23 examples; `play` runs one round."""

    def __init__(self, folder: Path, plan=SGD, private="affine", counts=True) -> None:
        folder.mkdir(exist_ok=True)
        self.patches = folder / "patches"
        self.scene = Scene(folder, TOY, plan, private)
        self.data = random_data("ann", 23, counts)
        self.trainer = LocalTrainer(TOY, self.data)
        self.update = LocalUpdate(self.trainer, PatchStore(self.patches), "ann", private="none")

    def play(self, round=1, limit_s=LIMIT_S, cancelled=lambda: False, **changes):
        """The report as it is sent, and the update's tensors."""
        ends_at = time.monotonic() + limit_s if limit_s else 0.0
        command = self.scene.command(round=round, independent_ends_at=ends_at, **changes)
        done = self.update.run(command, lambda *_: None, cancelled)
        return None if done is None else self.scene.update(done[0])


def alone(device: Device, steps: int) -> dict[str, Array]:
    """Oracle: a plain loop of torch's own SGD from the initial model, over the device's own batches."""
    model = TOY.build_model()
    load_tensors(model, initial_tensors(TOY, SGD.seed))
    model.train()
    x, y = torch.from_numpy(device.data.train_x), torch.from_numpy(device.data.train_y)
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD.learning_rate)
    for indices in batch_indices(len(x), SGD.batch_size, 0, steps, stream_seed(SGD.seed, "ann")):
        optimizer.zero_grad()
        TOY.loss(model(x[torch.from_numpy(indices)]), y[torch.from_numpy(indices)]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(device.data.test_x))
    found = {name: value.numpy() for name, value in model.state_dict().items()}
    return found | {"ua": np.array(TOY.metric(outputs, torch.from_numpy(device.data.test_y)))}


def state_of(device: Device):
    """The model that the device has trained alone, after the end of its process."""
    device.update.flush()
    store = PatchStore(device.patches / "independent")
    [entry] = list_patches(store.directory)
    from fedpatch.device_agent.state.patch_store import PatchKey

    return store.load(PatchKey(entry.task, entry.schema, entry.policy), "another run", 0)


def test_two_measures_train_what_an_oracle_trains_alone_and_report_its_accuracy(tmp_path):
    device = Device(tmp_path)
    device.play(2)
    meta, _ = device.play(4)
    state = state_of(device)
    expected = alone(device, state.batches_done)
    assert state.batches_done == 2 * meta["steps"]
    assert meta["user_accuracy_independent"] == pytest.approx(float(expected.pop("ua")))
    assert state.values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(state.values[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("plan", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("private", ["none", "affine", "all"])
def test_a_measure_changes_neither_update_nor_patch(tmp_path, plan, private):
    plain, measuring = (Device(tmp_path / name, plan, private) for name in ("plain", "measuring"))
    for round in (1, 2):
        before, tensors = plain.play(round, limit_s=0.0)
        meta, same = measuring.play(round)
        assert "user_accuracy_independent" not in before
        assert {k: v for k, v in meta.items() if k not in ("user_accuracy_independent", "train_s")} == {
            k: v for k, v in before.items() if k != "train_s"
        }
        for name, value in tensors.items():
            np.testing.assert_array_equal(same[name], value)
        file = next(path.name for path in plain.patches.glob("*.patch"))
        assert (plain.patches / file).read_bytes() == (measuring.patches / file).read_bytes()
        for name, value in plain.trainer.model.state_dict().items():
            assert torch.equal(value, measuring.trainer.model.state_dict()[name])


def test_a_round_that_is_repeated_measures_the_same_and_another_run_begins_anew(tmp_path):
    device = Device(tmp_path)
    device.play(2)
    first, _ = device.play(4)
    again, _ = device.play(4)
    assert again["user_accuracy_independent"] == first["user_accuracy_independent"]
    assert state_of(device).batches_done == 2 * first["steps"]
    device.play(key=JobKey("another", 1, 2, "toy"))
    assert state_of(device).batches_done == first["steps"]


@pytest.mark.parametrize("fault", ["no_time", "disk", "no_room", "owner", "diverged", "model"])
def test_failed_measurement_does_not_fail_the_round(tmp_path, fault, monkeypatch):
    device = Device(tmp_path)
    if fault == "disk":
        device.patches.mkdir(exist_ok=True)
        (device.patches / "independent").write_text("in the way")
    if fault == "no_room":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    if fault == "owner":  # allows the round's own training, and no more
        device.update.bound(max_steps=device.scene.plan.steps_for(23), max_epochs=0)
    real = device.trainer.run

    def run(*args, **named):
        if not named.get("measure_before", True) and fault in ("diverged", "model"):
            raise UpdateRefused("not_finite", "the loss was nan") if fault == "diverged" else RuntimeError("boom")
        return real(*args, **named)

    monkeypatch.setattr(device.trainer, "run", run)
    meta, tensors = device.play(2, limit_s=1e-9 if fault == "no_time" else LIMIT_S)
    assert "user_accuracy_independent" not in meta
    assert tensors


def test_a_cancel_during_the_measure_keeps_the_patch_and_writes_no_update(tmp_path):
    """The trained patch is kept, as after a cancel in the upload; a repeated request for the round gives the same."""
    device = Device(tmp_path)
    steps = device.play(1, limit_s=0.0)[0]["steps"]
    patch = next(device.patches.glob("*.patch")).read_bytes()
    asked = 0

    def cancelled():
        nonlocal asked
        asked += 1
        return asked > steps + 4

    (tmp_path / "update").unlink()
    assert device.play(2, cancelled=cancelled) is None
    kept = next(device.patches.glob("*.patch")).read_bytes()
    assert kept != patch
    assert not (tmp_path / "update").exists()
    assert not list((device.patches / "independent").glob("*.patch"))
    device.play(2)
    assert next(device.patches.glob("*.patch")).read_bytes() == kept


def test_a_kill_during_the_measure_finds_the_patch_on_the_disk(tmp_path, monkeypatch):
    device = Device(tmp_path)
    real = device.trainer.run

    def run(*args, **named):
        if not named.get("measure_before", True):
            raise Killed
        return real(*args, **named)

    monkeypatch.setattr(device.trainer, "run", run)
    with pytest.raises(Killed):
        device.play(2)
    assert list(device.patches.glob("*.patch"))
    assert list(device.patches.glob("*.private"))


def test_wherever_it_is_killed_the_state_of_a_measure_lies_beside_the_update_of_its_round(tmp_path_factory):
    """The state is as large as the model: if it fills the disk, the update is already written."""
    states = 0
    for fatal in range(1, 100):
        folder = tmp_path_factory.mktemp("killed")
        device = Device(folder)

        def measure(device: Device = device) -> None:
            device.play(2)
            device.update.flush()

        changes = Guillotine(fatal).run(measure)
        if list((device.patches / "independent").glob("*.patch")):
            states += 1
            assert (folder / "update").exists(), fatal
        if changes < fatal:
            break
    assert states > 1


def test_a_state_that_the_disk_refuses_costs_neither_update_nor_measure(tmp_path, monkeypatch, caplog):
    """The next measure continues from the former state and shows less than it could: it stays a lower bound."""
    device = Device(tmp_path)
    real = PatchStore.save

    def save(store, record):
        if store.directory.name == "independent":
            raise StateError("no space left")
        real(store, record)

    monkeypatch.setattr(PatchStore, "save", save)
    meta, _ = device.play(2)
    device.update.flush()
    assert "user_accuracy_independent" in meta
    assert "no space left" in caplog.text


@pytest.mark.parametrize(
    ("trained_s", "download_s", "measured"), [(59.0, 0.0, True), (70.0, 0.0, False), (0.0, 70.0, False)]
)
def test_a_measure_after_long_training_is_given_up_in_time_for_the_upload(
    tmp_path, monkeypatch, trained_s, download_s, measured
):
    """A measure has half of the time that training left, less the time of the download; here it needs 20 s of 100."""
    device = Device(tmp_path)
    clock = [1000.0]
    monkeypatch.setattr("fedpatch.device_agent.training.local_only_training.time.monotonic", lambda: clock[0])
    real = device.trainer.run

    def run(*args, **named):
        own = named.get("measure_before", True)
        per_step_s = (trained_s if own else 20.0) / device.scene.plan.steps_for(23)

        def on_step(done, total):
            clock[0] += per_step_s

        return real(*args, **{**named, "on_step": on_step})

    monkeypatch.setattr(device.trainer, "run", run)
    command = device.scene.command(round=2, independent_ends_at=1100.0, download_s=download_s)
    done = device.update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    report = done[1]
    assert (report.user_accuracy_independent is not None) is measured
    assert clock[0] < 1100.0


def test_a_device_that_does_not_count_trains_nothing_alone(tmp_path):
    device = Device(tmp_path, counts=False)
    meta, _ = device.play(2)
    assert "user_accuracy_independent" not in meta
    assert not (device.patches / "independent").exists()


def test_the_second_model_is_no_patch_of_the_owners_floor(tmp_path):
    device = Device(tmp_path, private="none")
    device.play(2)
    assert (device.patches / "independent").stat().st_mode & 0o077 == 0
    assert all(policy != "independent" for policy, _ in kept_in_patches(device.patches, "toy"))
    measured = PrivateFloor(device.patches, "toy", "").of(device.trainer.schema).names
    plain = Device(tmp_path / "plain", private="none")
    plain.play(2, limit_s=0.0)
    assert PrivateFloor(plain.patches, "toy", "").of(plain.trainer.schema).names == measured


@pytest.mark.parametrize("change", [{"measure_independent": True}, {"features": COORDINATOR_FEATURES}])
def test_a_request_that_differs_in_what_is_measured_or_understood_goes_on(change):
    old, new = JobKey("run", 1, 2, "toy"), JobKey("run", 2, 2, "toy")
    assert continues(old, REQUEST, new, replace(REQUEST, **change), downloading=False)
    assert not continues(old, REQUEST, new, replace(REQUEST, private="all"), downloading=False)
