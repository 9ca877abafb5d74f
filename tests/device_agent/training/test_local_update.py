"""A device's part of a round: the content of an update, and the values that stay."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET
from torch import nn

from fedpatch.device_agent.job.training_messages import Downloaded
from fedpatch.device_agent.state.patch_store import CONTROLS, PERSONAL, PatchKey, PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.errors import SchemaMismatch, StateError, UpdateRefused, UsageError, WireError
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.shared.tensors.patches import split
from fedpatch.shared.wire.codec import from_bytes, to_bytes
from fedpatch.shared.wire.field_types import MAX_MEASURE
from fedpatch.shared.wire.messages import ENCODINGS, MAX_CHUNKS, UpdateReport, is_delta
from fedpatch.shared.wire.plan_terms import make_terms
from tests.device_agent.device_rounds import ADAM, POLICIES, SGD, Scene, key, raw_update, traces
from tests.device_agent.disk_change_killer import Guillotine
from tests.device_agent.toy_tasks import TIED, TOY, random_data

FINISH = replace(SGD, **make_terms(0.0, "public:1", finish="private:2"))
DITTO = replace(SGD, **make_terms(0.0, personal="ditto:0.5"))

PLANS = {"sgd": SGD, "adam": ADAM}


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path, "ann")


class Device:
    """A LocalUpdate and its store."""

    def __init__(self, folder, name, task=TOY):
        self.folder = folder / name
        self.folder.mkdir()
        self.store = PatchStore(self.folder / "patches")
        self.local_update = LocalUpdate(LocalTrainer(task, random_data(name, 23)), self.store, name, private="none")

    def run(self, command, cancelled=lambda: False):
        return self.local_update.run(command, lambda done, total: None, cancelled)

    def patch(self, scene):
        key = PatchKey(scene.task.name, scene.model.digest, f"{scene.policy} {scene.plan.kind}".strip())
        return self.store.load(key, "another run", 0)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("private", POLICIES)
def test_public_tensors_leave_and_private_ones_stay(tmp_path, device, private, plan):
    scene = Scene(tmp_path, TOY, plan, private)
    manifest, report = device.run(scene.command())
    meta, update = scene.update(manifest)
    scene.public.check(update)
    scene.policy.patch(scene.whole).check(device.patch(scene).values)
    assert device.patch(scene).batches_done == report.steps == 5
    assert meta == report.plain
    assert not {"user_accuracy_independent", "members"} & meta.keys()


def test_a_patch_of_one_plan_is_not_read_under_another(tmp_path, device):
    """The second plan begins with the initial patch, as on a device that has never trained."""
    plans = (replace(SGD, **make_terms(0.0, "public,private")), replace(SGD, **make_terms(0.0, "all")))
    scene, other = (Scene(tmp_path, TOY, plan, "all") for plan in plans)
    device.run(scene.command())
    device.run(other.command())
    new = Device(tmp_path, "new")
    new.local_update = LocalUpdate(LocalTrainer(TOY, random_data("ann", 23)), new.store, "ann", private="none")
    new.run(other.command())
    assert_equal(device.patch(other).values, new.patch(other).values)


def copy_of(device, scene):
    key = PatchKey(scene.task.name, scene.model.digest, f"{scene.policy} {scene.plan.kind}".strip())
    return dict(PatchStore(device.store.directory / PERSONAL).load(key, "another run", 0).values)


def test_a_personal_copy_changes_no_bit_of_update_and_patch(tmp_path, device):
    plain, ditto = (Scene(tmp_path, TOY, plan, "affine") for plan in (SGD, DITTO))
    updates = [scene.update(device.run(scene.command())[0])[1] for scene in (plain, ditto)]
    assert_equal(updates[1], updates[0])
    assert_equal(device.patch(ditto).values, device.patch(plain).values)


def test_a_repeated_round_trains_the_personal_copy_once(tmp_path, device):
    scene = Scene(tmp_path, TOY, DITTO, "affine")
    device.run(scene.command())
    for _ in range(2):
        device.run(scene.command(round=2))
    other = Device(tmp_path, "other")
    other.local_update = LocalUpdate(LocalTrainer(TOY, random_data("ann", 23)), other.store, "ann", private="none")
    for round in (1, 2):
        other.run(scene.command(round=round))
    assert_equal(copy_of(device, scene), copy_of(other, scene))


def test_an_evaluation_measures_the_personal_copy_and_writes_nothing(tmp_path, device):
    scene = Scene(tmp_path, TOY, DITTO, "affine")
    _, report = device.run(scene.command())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    command = replace(scene.command(round=2), evaluate=True)
    measured = device.local_update.evaluate(command, lambda: False)
    assert measured.user_accuracy == report.user_accuracy_after
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_finish_changes_no_bit_of_update_and_patch(tmp_path, device):
    """Its copy begins with the model of the round: values that the finish does not train are those of the round."""
    without, scene = (Scene(tmp_path, TOY, plan, "affine") for plan in (replace(FINISH, finish=UNSET), FINISH))
    updates = [scene.update(device.run(scene.command())[0])[1] for scene in (without, scene)]
    assert_equal(updates[1], updates[0])
    assert_equal(device.patch(scene).values, device.patch(without).values)
    assert device.patch(scene).batches_done == 5
    copy, model, private = copy_of(device, scene), scene.initial(), scene.policy.private_names(scene.model)
    trained = {one.name for one in scene.model.specs if one.trainable}
    assert_equal({name: copy[name] for name in trained - private}, {name: model[name] for name in trained - private})
    assert all((copy[name] != device.patch(scene).values[name]).any() for name in trained & private)


def test_an_evaluation_finishes_the_model_of_a_device_that_has_never_trained(tmp_path, device):
    """The result equals the finish of a round on the same model, after any training; a repetition gives the same."""
    scene = Scene(tmp_path, TOY, FINISH, "affine")
    command = replace(scene.command(round=2), evaluate=True)
    first = device.local_update.evaluate(command, lambda: False)
    assert list(device.folder.rglob("*.patch")) == []
    _, report = device.run(scene.command())
    again = device.local_update.evaluate(command, lambda: False)
    assert first.user_accuracy == again.user_accuracy == report.user_accuracy_before == report.user_accuracy_after


def test_a_cancelled_finish_gives_no_measure(tmp_path, device):
    command = replace(Scene(tmp_path, TOY, FINISH, "affine").command(), evaluate=True)
    assert device.local_update.evaluate(command, iter([False, False, True]).__next__) is None


def test_owner_limit_counts_the_steps_of_a_finish(tmp_path, device):
    scene = Scene(tmp_path, TOY, FINISH, "affine")
    device.local_update.bound(max_steps=14, max_epochs=0)
    for attempt in (device.run, lambda command: device.local_update.evaluate(command, lambda: False)):
        with pytest.raises(UsageError, match="15 training steps are asked for, those of finish among them"):
            attempt(scene.command())


def test_owner_limit_counts_the_next_power_of_4_where_the_number_of_examples_is_hidden(tmp_path, device):
    """Data may grow after the acceptance, and a failure must not tell their number."""
    scene = Scene(tmp_path, TOY, SGD, "affine")
    most = scene.plan.steps_for(device.local_update._trainer.num_examples)
    device.local_update.bound(max_steps=most, max_epochs=100)
    device.run(scene.command())
    device.local_update.bound(max_steps=most, max_epochs=100, hides_examples=True)
    with pytest.raises(UsageError, match=f"the owner's limit is max_steps = {most}"):
        device.run(scene.command(round=2))


CONTROL = replace(SGD, moments=("control",))


def control_of(device, scene, counted=99, run="run"):
    key = PatchKey(scene.task.name, scene.model.digest, scene.private)
    return dict(PatchStore(device.store.directory / CONTROLS).load(key, run, counted + 1).values)


def begun_with(device, scene, **changes):
    """The c_i with which a round began: with c = 0, c_i+ - c_i is sent."""
    manifest, _ = device.run(scene.command(**changes))
    sent, after = scene.update(manifest)[1], control_of(device, scene, run=changes.get("key", key(1)).run)
    return {name: value - sent[name] for name, value in after.items()}


def assert_zero(values):
    assert values
    for name, value in values.items():
        np.testing.assert_allclose(value, 0.0, atol=1e-6, err_msg=name)


def test_a_control_variate_goes_on_after_the_update_that_counted_last(tmp_path, device):
    """Updates of rounds 2 and 3 were trained, but refused or late: their changes to it are dropped."""
    scene = Scene(tmp_path, TOY, CONTROL, "affine")
    assert_zero(begun_with(device, scene))
    first = control_of(device, scene)
    assert max(np.abs(value).max() for value in first.values()) > 0.01
    for round, counted in ((2, 1), (3, 1), (4, 1)):
        found = begun_with(device, scene, round=round, counted=counted)
        for name, value in first.items():
            np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)
    fourth = control_of(device, scene)
    found = begun_with(device, scene, round=5, counted=4)
    for name, value in fourth.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


def test_a_repeated_round_begins_with_the_same_control_variate(tmp_path, device):
    scene = Scene(tmp_path, TOY, CONTROL, "affine")
    device.run(scene.command())
    updates = [scene.update(device.run(scene.command(round=2, counted=1))[0])[1] for _ in range(2)]
    assert_equal(*updates)


def test_a_control_variate_of_another_run_or_one_that_never_counted_is_not_used(tmp_path, device):
    scene = Scene(tmp_path, TOY, CONTROL, "affine")
    device.run(scene.command())
    assert_zero(begun_with(device, scene, round=2, counted=0))
    assert_zero(begun_with(device, scene, key=replace(key(1), run="other"), counted=0))


def test_a_damaged_control_variate_begins_at_zero(tmp_path, device, caplog):
    scene = Scene(tmp_path, TOY, CONTROL, "affine")
    device.run(scene.command())
    for path in (device.store.directory / CONTROLS).iterdir():
        path.write_bytes(b"damaged")
    assert_zero(begun_with(device, scene, round=2, counted=1))
    assert "it begins at zero" in caplog.text


@pytest.mark.parametrize("encoding", ["fp32", "fp32+zstd"])
@pytest.mark.parametrize("kind", ["ditto", "pfedme"])
def test_an_update_holds_no_trace_of_the_personal_copy(tmp_path, device, encoding, kind):
    """Batch norm statistics are left out: they are the same in pFedMe's model and copy, and travel by the policy."""
    scene = Scene(tmp_path, TOY, replace(SGD, **make_terms(0.0, personal=f"{kind}:0.5")), "none")
    for round in (1, 2):
        device.run(scene.command(round=round, encoding=encoding))
        raw, copy = raw_update(tmp_path / "update", encoding), copy_of(device, scene)
        assert len(copy) == len(scene.model.names)
        for name in (one.name for one in scene.model.specs if one.trainable):
            assert not [trace for trace in traces(copy[name]) if trace in raw], name


def test_owner_limit_counts_the_steps_of_the_personal_copy(tmp_path, device):
    scene = Scene(tmp_path, TOY, DITTO, "affine")
    device.local_update.bound(max_steps=9, max_epochs=0)
    with pytest.raises(UsageError, match="10 training steps are asked for, those of the personal copy among them"):
        device.run(scene.command())


@pytest.mark.matrix
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("private", POLICIES[1:])
def test_an_update_holds_no_trace_of_the_patch(tmp_path, device, private, encoding):
    """Neither a private name nor two neighbouring private values, in any precision, are among the bytes that leave."""
    scene = Scene(tmp_path, TOY, ADAM, private)
    manifest, _ = device.run(scene.command(encoding=encoding))
    raw = raw_update(tmp_path / "update", encoding)
    patch = device.patch(scene).values
    assert patch
    for name, value in patch.items():
        assert name.encode() not in raw
        assert not [trace for trace in traces(value) if trace in raw], name
    _, update = scene.update(manifest)
    for name in update:  # the same check finds names that are there
        assert name.encode() in raw
    assert is_delta(encoding) or any(trace in raw for trace in traces(update["fc1.weight"]))


def test_the_manifest_describes_the_file(tmp_path, device):
    scene = Scene(tmp_path, TOY, SGD, "all")
    manifest, report = device.run(scene.command())
    blob = (tmp_path / "update").read_bytes()
    assert manifest.digest == hashlib.sha256(blob).hexdigest()
    assert manifest.size_bytes == len(blob)
    assert (manifest.chunk_count - 1) * 100 < len(blob) <= manifest.chunk_count * 100
    assert (manifest.chunk_bytes, manifest.schema) == (100, scene.public.digest)
    assert stat.S_IMODE((tmp_path / "update").stat().st_mode) == 0o600
    assert (report.num_examples, report.download_s) == (23, 1.5)


def test_a_new_device_begins_with_the_initial_patch(tmp_path, device):
    scene = Scene(tmp_path, TOY, SGD, "all")
    manifest, report = device.run(scene.command())
    whole = Scene(tmp_path, TOY, SGD, "none")
    other = Device(tmp_path / "..", f"{tmp_path.name}-other")
    other.local_update = LocalUpdate(LocalTrainer(TOY, random_data("ann", 23)), other.store, "ann", private="none")
    _, update = scene.update(manifest)
    expected_manifest, expected_report = other.run(whole.command())
    _, expected = whole.update(expected_manifest)
    assert_equal({**update, **device.patch(scene).values}, expected)
    assert report.user_accuracy_before == expected_report.user_accuracy_before


def test_the_patch_is_applied_to_the_next_global_model(tmp_path, device):
    scene = Scene(tmp_path, TOY, replace(SGD, steps=60), "names:fc2.*,bn.*")
    _, first = device.run(scene.command())
    _, second = device.run(scene.command(round=2))
    assert second.user_accuracy_before > first.user_accuracy_before


def test_private_moments_go_on_while_public_ones_come_from_the_coordinator(tmp_path, device):
    scene = Scene(tmp_path, TOY, ADAM, "affine")
    device.run(scene.command())
    manifest, _ = device.run(scene.command(round=2))
    _, update = scene.update(manifest)
    assert device.patch(scene).values["bn.weight:step"] == 10
    assert update["fc1.weight:step"] == 5


def test_a_run_with_another_optimizer_keeps_the_patch_and_begins_new_moments(tmp_path, device):
    """Moments that a plan does not ask for are dropped; if a later plan asks for them again, they start from zero."""
    adam, sgd = Scene(tmp_path, TOY, ADAM, "affine"), Scene(tmp_path, TOY, SGD, "affine")
    device.run(adam.command())
    device.run(sgd.command(round=2))
    assert device.patch(sgd).values.keys() == {"bn.weight", "bn.bias"}
    device.run(adam.command(round=3))
    assert device.patch(adam).values["bn.weight:step"] == 5


def test_a_repeated_round_gives_the_same_update(tmp_path, device):
    scene = Scene(tmp_path, TOY, ADAM, "all")
    device.run(scene.command())
    _, first = scene.update(device.run(scene.command(round=2))[0])
    patch = device.patch(scene)
    _, again = scene.update(device.run(scene.command(round=2))[0])
    assert_equal(again, first)
    assert_equal(device.patch(scene).values, patch.values)
    assert device.patch(scene).batches_done == patch.batches_done == 10


def test_a_private_tensor_among_the_public_ones_ends_the_round_before_anything_is_written(
    tmp_path, device, monkeypatch
):
    """For any fault in splitting: the names that may leave are compared once more."""
    scene = Scene(tmp_path, TOY, SGD, "affine")

    def split_badly(tensors, policy, schema):
        update, patch = split(tensors, policy, schema)
        return {**update, "bn.weight": patch["bn.weight"]}, patch

    monkeypatch.setattr("fedpatch.device_agent.training.local_update.split", split_badly)
    with pytest.raises(UpdateRefused, match=r"'bn\.weight' would have left this device; nothing was written") as error:
        device.run(scene.command())
    assert error.value.reason == "private_value"
    assert not (tmp_path / "update").exists()
    assert not list((device.folder / "patches").iterdir())


def test_a_cancelled_round_saves_nothing(tmp_path, device):
    scene = Scene(tmp_path, TOY, SGD, "all")
    assert device.run(scene.command(), cancelled=lambda: True) is None
    assert not (tmp_path / "update").exists()
    assert not list((device.folder / "patches").iterdir())


def test_loss_above_the_range_of_the_wire_is_clamped(tmp_path):
    task = replace(TOY, loss=lambda outputs, targets: 1e13 + TOY.loss(outputs, targets))
    _, report = Device(tmp_path, "ann", task).run(Scene(tmp_path, task, SGD, "none").command())
    assert report.train_loss == MAX_MEASURE
    assert from_bytes(to_bytes(report), UpdateReport) == report


def test_chunks_that_are_too_small_for_an_update_are_refused(tmp_path):
    """An update with more chunks than a manifest can announce would be offered for ever, and never accepted."""
    task = replace(TOY, build_model=lambda: nn.Sequential(nn.Linear(12, 1400), nn.Linear(1400, 3)))
    command = Scene(tmp_path, task, SGD, "none").command(chunk_bytes=1, encoding="fp32")
    with pytest.raises(UsageError, match=rf"\d+ chunks of 1 bytes, at most {MAX_CHUNKS}"):
        Device(tmp_path, "ann", task).run(command)
    assert not (tmp_path / "update").exists()


def test_a_damaged_model_is_not_trained(tmp_path, device):
    scene = Scene(tmp_path, TOY, SGD, "none")
    command = scene.command()
    blob = bytearray((tmp_path / "model").read_bytes())
    blob[-1] ^= 1
    (tmp_path / "model").write_bytes(blob)
    with pytest.raises(WireError, match=r"model: has SHA-256 .*fetched again"):
        device.run(command)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"blob": Downloaded("gone")}, StateError, r"gone: No such file or directory"),
        ({"update_path": "no/update"}, StateError, r"no/update: No such file or directory; make its directory again"),
        ({"schema": "ab" * 32}, SchemaMismatch, r"schema abababababab, .* same version of the task"),
        ({"private": "all"}, SchemaMismatch, "the global model has schema"),
        ({"plan": ADAM}, SchemaMismatch, "the global model has schema"),
        ({"private": "afine"}, UsageError, "did you mean 'affine'"),
    ],
    ids=["model gone", "no place", "another model", "another policy", "another plan", "unknown policy"],
)
def test_a_command_that_cannot_be_followed_is_refused(tmp_path, monkeypatch, device, changes, error, words):
    monkeypatch.chdir(tmp_path)
    command = Scene(tmp_path, TOY, SGD, "none").command(**changes)
    with pytest.raises(error, match=words):
        device.run(command)


def test_a_tied_weight_cannot_be_half_private(tmp_path):
    scene = Scene(tmp_path, TIED, SGD, "names:0.weight")
    with pytest.raises(UsageError, match="one and the same tensor"):
        Device(tmp_path, "ann", TIED).run(scene.command())
    assert not (tmp_path / "update").exists()


def test_tensors_of_the_global_model_are_used(tmp_path, device):
    scene = Scene(tmp_path, TOY, replace(SGD, learning_rate=1e-9), "none")
    sent = scene.initial()
    sent["fc1.weight"] = sent["fc1.weight"] + 1
    manifest, _ = device.run(scene.command(sent))
    _, update = scene.update(manifest)
    np.testing.assert_allclose(update["fc1.weight"], sent["fc1.weight"], atol=1e-6)
    assert not np.allclose(update["fc1.weight"], initial_tensors(TOY, 1)["fc1.weight"])
    assert MOMENTS[0] not in str(update.keys())


def test_wherever_it_is_killed_an_update_lies_beside_the_patch_of_its_round(tmp_path_factory):
    """The patch is saved before the update: an update without it would depend on a patch that the device has lost."""
    updates = 0
    for fatal in range(1, 100):
        folder = tmp_path_factory.mktemp("killed")
        scene = Scene(folder, TOY, SGD, "affine")
        store = PatchStore(folder / "patches")
        local_update = LocalUpdate(LocalTrainer(TOY, random_data("ann", 23)), store, "ann")
        command = scene.command(encoding="delta-int8")
        changes = Guillotine(fatal).run(lambda: local_update.run(command, lambda *_: None, lambda: False))  # noqa: B023
        if (folder / "update").exists():
            updates += 1
            key = PatchKey(TOY.name, scene.model.digest, "affine")
            assert store.load(key, "run", 2).batches_done == 5, fatal
        if changes < fatal:
            break
    assert updates > 1


@pytest.mark.parametrize("other", ["names:bn.bias,bn.weight", "names:bn.weight,bn.b*"])
def test_policy_in_other_words_goes_on_with_the_same_patch(tmp_path, device, other):
    """Else two runs could train the same batches from the same patch, and their sums differ in one device's update alone."""
    worded = Scene(tmp_path, TOY, SGD, "affine"), Scene(tmp_path, TOY, SGD, other)
    assert worded[0].policy.keeps(worded[0].model) == worded[1].policy.keeps(worded[1].model)
    device.run(worded[0].command())
    first = device.patch(worded[0])
    manifest, _ = device.run(worded[1].command(key=replace(key(1), run="second")))
    alone = Device(tmp_path, "alone")
    alone.local_update = LocalUpdate(LocalTrainer(TOY, random_data("ann", 23)), alone.store, "ann", private="none")
    assert alone.run(worded[1].command(key=replace(key(1), run="second")))[0].digest != manifest.digest
    assert device.patch(worded[0]).batches_done == 2 * first.batches_done


def test_patch_of_an_earlier_version_is_used_under_its_own_words(tmp_path, device):
    """Earlier versions kept a patch for each wording of a policy."""
    scene = Scene(tmp_path, TOY, SGD, "names:bn.bias,bn.weight")
    device.run(scene.command())
    [path] = device.store.directory.glob("*.patch")
    worded = PatchKey(TOY.name, scene.model.digest, scene.private)
    record = device.store._newest(PatchKey(TOY.name, scene.model.digest, "affine"))
    path.unlink()
    device.store.save(replace(record, key=worded))
    device.run(scene.command(round=2))
    assert device.store.load(worded, "run", 3).batches_done == 2 * record.after.batches_done
