"""The training process in a masked round: the vector on disk, and the masks on it."""

from __future__ import annotations

import math
import stat
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpatch.device_agent.job.training_messages import MaskCommand, Masked, Trained, TrainFailed
from fedpatch.device_agent.state.patch_store import PatchStore, key_of_round
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.device_agent.training.masked_update import (
    AFFINE_MOVE,
    PATCH_MOVE,
    PATCH_SHARE,
    bounded_patch,
    mask_update,
    unmasked_blob,
)
from fedpatch.device_agent.training.training_process import masked
from fedpatch.shared.errors import StateError
from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.group_sum import mean_step, read_report, read_sum
from fedpatch.shared.masking.masked_blob import add_masks, read_masked_blob
from fedpatch.shared.masking.private_vector import PrivateLayout, signed_sum
from fedpatch.shared.masking.skellam_noise import skellam_values
from fedpatch.shared.masking.unmasking import Mask
from fedpatch.shared.masking.vector_layout import VectorLayout, travelling
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.tasks.bundled.digits import TASK as DIGITS
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.privacy_messages import PrivacyTerms
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.device_rounds import SGD, Scene, traces
from tests.device_agent.toy_tasks import TOY, random_data
from tests.device_agent.watched_training_process import Watched
from tests.support.masked_group import terms_of

CONTEXT = b"\xc7" * 32
MASKS = (Mask(b"\x01" * 32, 1), Mask(b"\x02" * 32, -1))


@pytest.fixture
def device(tmp_path):
    """A device with 23 examples of the toy task."""
    return LocalUpdate(
        LocalTrainer(TOY, random_data("ann", 23)), PatchStore(tmp_path / "patches"), "ann", private="none"
    )


def scene_of(folder, private="affine"):
    return Scene(folder, TOY, SGD, private)


def terms(scene, **changes):
    grid = write_grid((0.5,) * len(travelling(scene.public)))
    return replace(terms_of(3, bits=16, clip=1e6, weight_cap=16, grid=grid), **changes)


def train(device, scene, secure, tensors=None, round=1, **changes):
    """Train a round; return manifest, report, vector and command."""
    command = scene.command(tensors, round, encoding=f"masked-u{secure.bits}", secure=secure, **changes)
    done = device.run(command, lambda done, total: None, lambda: False)
    assert done is not None
    manifest, report = done
    blob = (scene.folder / "update").read_bytes()
    return manifest, report, read_masked_blob(blob, VectorLayout(scene.public, secure)), command


@pytest.mark.parametrize(
    ("measures", "logged"),
    [
        ({"user_accuracy_before": 3e9}, ["user accuracy"]),
        ({"user_accuracy_after": -3e9, "train_loss": 1e10}, ["training loss", "user accuracy"]),
        ({"user_accuracy_before": 2e9, "user_accuracy_after": None}, []),
    ],
)
def test_measure_that_masked_sums_cut_is_logged_with_the_remedy(tmp_path, device, caplog, measures, logged):
    scene = scene_of(tmp_path)
    _, report, _, command = train(device, scene, terms(scene))
    caplog.clear()
    values = scene.initial()
    unmasked_blob(
        command.secure,
        scene.public,
        model=values,
        update=values,
        report=replace(report, **measures),
        metric=TOY.metric_terms,
        seed=1,
    )
    assert [one.getMessage().partition(" of ")[0] for one in caplog.records] == [f"the {name}" for name in logged]
    assert all("scale it in the task" in one.getMessage() for one in caplog.records)


def test_vector_holds_the_step_and_the_report(tmp_path, device):
    """Compared with the unmasked update of another device with the same data and the same seed."""
    scene = scene_of(tmp_path)
    (tmp_path / "plain").mkdir()
    plain = Scene(tmp_path / "plain", TOY, SGD, "affine")
    other = LocalUpdate(
        LocalTrainer(TOY, random_data("ann", 23)), PatchStore(tmp_path / "other"), "ann", private="none"
    )
    trained = other.run(plain.command(), lambda done, total: None, lambda: False)
    assert trained is not None
    _, update = plain.update(trained[0])
    secure = terms(scene)
    manifest, report, vector, command = train(device, scene, secure)
    layout = VectorLayout(scene.public, secure)
    total = read_sum(layout, vector.elements, 1)
    initial = scene.initial()
    for name, step in mean_step(layout, total).items():
        np.testing.assert_allclose(step, update[name] - initial[name], atol=0.51 / layout.top, err_msg=name)
    summed = read_report(layout, total)
    assert (summed.num_examples, summed.weight) == (16, 16), "23 examples are in the class of 16"
    assert summed.means["train_loss"] == pytest.approx(report.train_loss, abs=1e-5)
    assert vector.base == command.base
    assert (manifest.encoding, manifest.size_bytes, manifest.schema) == (
        "masked-u16",
        68 + layout.nbytes,
        scene.public.digest,
    )


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
def test_value_that_is_not_finite_and_never_changes_has_no_step(tmp_path, value):
    """Such as the mask of causal attention; the finite values of its tensor may change."""

    def build() -> nn.Module:
        module = TOY.build_model()
        module.register_buffer("mask", torch.triu(torch.full((3, 3), float(value)), diagonal=1))
        return module

    task = replace(TOY, build_model=build)
    store = PatchStore(tmp_path / "patches")
    device = LocalUpdate(LocalTrainer(task, random_data("ann", 23)), store, "ann", private="none")
    scene = Scene(tmp_path, task, SGD, "affine")
    secure = terms(scene)
    _, _, vector, _ = train(device, scene, secure)
    layout = VectorLayout(scene.public, secure)
    total = read_sum(layout, vector.elements, 1)
    step = mean_step(layout, total)
    assert not step["mask"].any()
    assert step["fc1.weight"].any()
    assert all(np.isfinite(read_report(layout, total).spreads))


def figures_of(scene, secure, vector):
    return read_report(
        VectorLayout(scene.public, secure), read_sum(VectorLayout(scene.public, secure), vector.elements, 1)
    )


def test_number_of_examples_is_in_no_vector_and_its_class_stays_while_data_grow(tmp_path, device):
    """Sums over many rounds are linear equations for whatever figure of a device stays."""
    scene = scene_of(tmp_path)
    secure = terms(scene, weight_cap=600)
    found = []
    for data in (23, 23, 400):
        device._trainer.take(random_data("ann", data))
        _, report, vector, _ = train(device, scene, secure)
        summed = figures_of(scene, secure, vector)
        found.append((report.num_examples, summed.num_examples, summed.weight))
    assert found == [(23, 16, 16), (23, 16, 16), (400, 16, 16)]


def test_device_whose_owner_hides_the_number_of_examples_weighs_what_all_weigh(tmp_path):
    scene = scene_of(tmp_path)
    secure = terms(scene, weight_cap=600)
    for examples in (3, 23):
        trainer = LocalTrainer(TOY, random_data("ann", examples))
        store = PatchStore(tmp_path / f"patches-{examples}")
        hiding = LocalUpdate(trainer, store, "ann", private="none")
        hiding.bound(0, 0, hides_examples=True)
        _, _, vector, _ = train(hiding, scene, secure)
        summed = figures_of(scene, secure, vector)
        assert (summed.num_examples, summed.weight) == (600, 600)


def test_repeated_attempt_has_the_same_vector(tmp_path, device):
    """Else two vectors would be sent under the same masks."""
    scene = scene_of(tmp_path)
    first, *_ = train(device, scene, terms(scene), attempt=b"1")
    second, *_ = train(device, scene, terms(scene), attempt=b"1")
    assert first == second


def test_another_attempt_at_a_round_has_other_batches_and_another_rounding(tmp_path, device):
    """Else two sums from one base would differ in the devices of one of them alone, to the bit."""
    scene = scene_of(tmp_path)
    patches = []
    vectors = []
    for attempt in (b"", b"1", b"2"):
        _, _, vector, _ = train(device, scene, terms(scene), attempt=attempt)
        vectors.append(vector.elements)
        assert device._trained is not None
        patches.append(device._trained[1].tensors)
    for one, other in combinations(range(3), 2):
        differs = np.count_nonzero(vectors[one] != vectors[other])
        assert differs > len(vectors[one]) // 4
        assert any(not np.array_equal(patches[one][name], patches[other][name]) for name in patches[one])


def test_vector_with_noise_of_the_devices_is_the_clipped_step_without_report(tmp_path, device):
    scene = scene_of(tmp_path)
    privacy = PrivacyTerms("skellam", 1.0, 0.01, 1e-5, 9, steps=200)
    command = replace(scene.command(encoding="masked-u16", secure=terms(scene, clip=0.01)), privacy=privacy)
    done = device.run(command, lambda done, total: None, lambda: False)
    assert done is not None
    layout = PrivateLayout(scene.public, privacy.clip, privacy.steps)
    blob = (tmp_path / "update").read_bytes()
    codes = signed_sum(read_masked_blob(blob, layout).elements)
    assert 150 < np.linalg.norm(codes) <= 200
    noise = SkellamNoise(b"n" * 32, 4_000.0)
    mask_update(replace(command_of(scene, done[0]), noise=noise))
    update = read_masked_blob((tmp_path / "masked").read_bytes(), layout)
    opened = add_masks(update.elements, [replace(mask, sign=-mask.sign) for mask in MASKS])
    assert (signed_sum(opened) - codes).tolist() == skellam_values(noise, layout.size).tolist()


def test_vector_has_nothing_of_the_step_that_an_earlier_round_cut_off(tmp_path, device):
    """A range of 1e-9 cuts the whole step off. The next round trains nothing, so its vector is that of no step."""
    scene = scene_of(tmp_path)
    tiny, wide = (write_grid((scale,) * len(travelling(scene.public))) for scale in (1e-9, 1.0))
    train(device, scene, terms(scene, grid=tiny))
    still = Scene(tmp_path, TOY, replace(SGD, learning_rate=1e-30), "affine")
    secure = terms(still, grid=wide)
    _, _, vector, _ = train(device, still, secure, round=2)
    layout = VectorLayout(still.public, secure)
    trained = {spec.name for spec in layout.specs if spec.trainable}
    steps = mean_step(layout, read_sum(layout, vector.elements, 1))
    assert not any(step.any() for name, step in steps.items() if name in trained)


@pytest.mark.parametrize("ends_at", [1e9, 0.0])
def test_masked_round_measures_nothing_of_learning_alone(tmp_path, device, ends_at):
    """The rest of its deadline decides whether a device still measures it, and that may differ from device to device."""
    scene = scene_of(tmp_path)
    secure = terms(scene)
    _, report, vector, _ = train(device, scene, secure, independent_ends_at=ends_at, ends_at=ends_at)
    layout = VectorLayout(scene.public, secure)
    figures = read_report(layout, read_sum(layout, vector.elements, 1))
    assert report.user_accuracy_independent is None
    assert figures.measured["user_accuracy_independent"] == figures.measured["gain"] == 0


def command_of(scene, manifest):
    folder = scene.folder
    return MaskCommand(scene.command().key, manifest, str(folder / "update"), str(folder / "masked"), CONTEXT, MASKS)


@pytest.mark.parametrize("bits", [8, 16])
def test_masked_update_is_the_vector_plus_the_masks(tmp_path, device, bits):
    scene = scene_of(tmp_path)
    secure = terms(scene, bits=bits)
    manifest, _, vector, _ = train(device, scene, secure)
    found = mask_update(command_of(scene, manifest))
    path = tmp_path / "masked"
    update = read_masked_blob(path.read_bytes(), VectorLayout(scene.public, secure))
    assert update.context == CONTEXT
    assert update.elements.tolist() == add_masks(vector.elements, MASKS).tolist() != vector.elements.tolist()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (found.encoding, found.size_bytes, found.schema) == (
        f"masked-u{bits}",
        len(path.read_bytes()),
        manifest.schema,
    )


def test_vector_that_changed_on_the_disk_is_not_masked(tmp_path, device):
    scene = scene_of(tmp_path)
    manifest, *_ = train(device, scene, terms(scene))
    (tmp_path / "update").write_bytes(b"other")
    with pytest.raises(StateError, match="no longer what training wrote"):
        mask_update(command_of(scene, manifest))
    answer = masked(command_of(scene, manifest))
    assert isinstance(answer, TrainFailed)
    assert answer.reason is FailReason.STORAGE
    assert not (tmp_path / "masked").exists()


def test_terms_of_another_model_fail_the_round(tmp_path, device):
    """The grid has one range too few: an error message, no crash."""
    scene = scene_of(tmp_path)
    with pytest.raises(Exception, match="ranges for"):
        train(device, scene, terms(scene, grid=write_grid((0.5,))))


def test_masked_update_holds_no_trace_of_the_patch(tmp_path, device):
    scene = scene_of(tmp_path, "all")
    manifest, *_ = train(device, scene, terms(scene))
    raw = (tmp_path / "update").read_bytes()
    mask_update(command_of(scene, manifest))
    raw += (tmp_path / "masked").read_bytes()
    for path in (tmp_path / "patches").glob("*.patch"):
        assert path.read_bytes() not in raw
    for name, value in scene.initial().items():
        assert name.encode() not in raw
        assert not [one for one in traces(value) if one in raw]


@pytest.mark.medium
def test_training_process_masks_the_vector_that_it_wrote(installed, tmp_path):
    """A real process: one command trains, a later one masks."""
    watched = Watched(tmp_path, "tests.device_agent.toy_tasks:TOY")
    scene = scene_of(tmp_path)
    secure = terms(scene)
    try:
        watched.trainer.start()
        watched.trainer.train(scene.command(encoding="masked-u16", secure=secure))
        trained = watched.outcome()
        assert isinstance(trained, Trained), trained
        watched.trainer.mask(command_of(scene, trained.manifest))
        answer = watched.outcome()
    finally:
        watched.trainer.stop()
    assert isinstance(answer, Masked), answer
    update = read_masked_blob((tmp_path / "masked").read_bytes(), VectorLayout(scene.public, secure))
    assert (update.context, answer.key) == (CONTEXT, scene.command().key)


def moved_by(before, after):
    return math.sqrt(sum(float(np.square(after[name].astype(np.float64) - before[name]).sum()) for name in before))


@pytest.mark.parametrize(("secure", "moves"), [(True, (0.97, AFFINE_MOVE)), (False, (5.0, math.inf))])
def test_step_at_an_absurd_rate_moves_the_patch_of_a_masked_round_by_its_bound_only(tmp_path, device, secure, moves):
    """A device whose patch is pushed far away has no gradients any more, and its next update shows as none in a sum."""
    scene = scene_of(tmp_path)
    plan = replace(SGD, learning_rate=100.0)
    if secure:
        train(device, scene, terms(scene), plan=plan)
    else:
        assert device.run(scene.command(plan=plan), lambda done, total: None, lambda: False) is not None
    command = scene.command(plan=plan)
    trainer = device._trainer
    key = key_of_round(
        trainer.task.name, trainer.schema, parse_policy(command.private), plan.kind, device._store.directory
    )
    state = device._store.load(key, command.key.run, command.key.round + 1)
    initial = {name: array for name, array in initial_tensors(TOY, plan.seed).items() if name in state.values}
    trained = {name: array for name, array in initial.items() if name.startswith("bn.") and "running" not in name}
    assert moves[0] <= moved_by(trained, state.values) <= moves[1] * (1 + 1e-6)


def test_honest_round_of_digits_moves_the_patch_by_less_than_half_of_the_bound(tmp_path):
    """The bound cuts off no honest training: five epochs from the first model, in a group of nine."""
    plan = TrainPlan("sgd", DIGITS.learning_rates["fedavg"], DIGITS.batch_size, epochs=5)
    scene, store = Scene(tmp_path, DIGITS, plan, "affine"), PatchStore(tmp_path / "patches")
    trainer = LocalTrainer(DIGITS, DIGITS.load_data("shard:0/9", tmp_path))
    device = LocalUpdate(trainer, store, "ann", private="none")
    assert device.run(scene.command(), lambda done, total: None, lambda: False) is not None
    trained_by = key_of_round("digits", trainer.schema, scene.policy, plan.kind, store.directory)
    after = store.load(trained_by, "run", 2).values
    before = {name: array for name, array in initial_tensors(DIGITS, plan.seed).items() if name in after}
    assert before.keys() == {"bn1.weight", "bn1.bias"}
    assert 0.05 < moved_by(before, after) < 0.4 < AFFINE_MOVE / 2


@pytest.mark.parametrize("role", ["affine", "weight"])
@given(scale=st.floats(1e-3, 1e6), seed=st.integers(0, 99))
def test_patch_moves_by_at_most_the_bound_in_the_direction_of_the_training(role, scale, seed):
    """Scales and shifts by less than other tensors, and independently of their own norm."""
    schema = Schema((TensorSpec("bn.mean", (3,), "float32", "stats"), TensorSpec("bn.weight", (50,), "float32", role)))
    drawn = np.random.default_rng(seed)
    before = {"bn.mean": np.zeros(3, np.float32), "bn.weight": np.full(50, 5.0, np.float32)}
    move = (scale * drawn.normal(size=50)).astype(np.float32)
    after = {"bn.mean": np.full(3, 1e9, np.float32), "bn.weight": before["bn.weight"] + move}
    found = bounded_patch(before, after, schema)
    of_others = max(PATCH_MOVE, PATCH_SHARE * float(np.linalg.norm(before["bn.weight"])))
    most = AFFINE_MOVE if role == "affine" else of_others
    changed = found["bn.weight"].astype(np.float64) - before["bn.weight"]
    asked = after["bn.weight"].astype(np.float64) - before["bn.weight"]
    assert np.linalg.norm(changed) <= most * (1 + 1e-5)
    assert found["bn.mean"] is after["bn.mean"]
    if np.linalg.norm(asked) <= most:
        assert found["bn.weight"] is after["bn.weight"]
    else:
        assert float(changed @ asked) == pytest.approx(np.linalg.norm(changed) * np.linalg.norm(asked), rel=1e-4)
