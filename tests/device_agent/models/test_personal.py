"""The Python API for applications: the present model, and a newer one once it is published."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.shared.errors import DataError, StateError, UsageError
from fedpatch.shared.tasks.model_metadata import MODEL_FILE
from tests.device_agent.exported_models import onnx_of, publish
from tests.device_agent.toy_tasks import TOY
from tests.support.damage_on_disk import flip_bit

INPUTS = np.random.default_rng(1).random((5, 12), dtype=np.float32)


@pytest.fixture(scope="module")
def onnx() -> bytes:
    """A model of the toy task."""
    return onnx_of(TOY, (12,))


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / MODELS_DIRECTORY, 1)


def test_the_present_model_predicts(tmp_path, store, onnx):
    publish(store, 1, onnx)
    for model in (PersonalModel.open(tmp_path, "toy"), PersonalModel.open(str(tmp_path))):
        assert model.predict(INPUTS).shape == (5, 3)
        np.testing.assert_allclose(model.predict(INPUTS[:1]), model.predict(INPUTS)[:1], atol=1e-6)
        assert model.metadata.round == 1
        with pytest.raises(DataError, match="the model takes"):
            model.predict(INPUTS[0])


def test_classes_have_names_where_the_task_names_them(tmp_path, store, onnx):
    publish(store, 1, onnx, class_names=("a", "b", "c"))
    model = PersonalModel.open(tmp_path)
    assert model.classify(INPUTS) == ["abc"[place] for place in model.predict(INPUTS).argmax(axis=1)]
    publish(store, 2, onnx)
    with pytest.raises(UsageError, match="names no classes"):
        PersonalModel.open(tmp_path).classify(INPUTS)


def test_newer_model_is_loaded_when_it_appears(tmp_path, store, onnx):
    publish(store, 1, onnx)
    model = PersonalModel.open(tmp_path)
    before = model.predict(INPUTS)
    assert not model.reload_if_newer()
    publish(store, 2, onnx_of(TOY, (12,)))
    np.testing.assert_array_equal(model.predict(INPUTS), before)
    assert model.reload_if_newer()
    assert model.metadata.round == 2
    assert not np.array_equal(model.predict(INPUTS), before)
    assert not model.reload_if_newer()


def test_a_model_that_was_opened_by_its_path_stays(tmp_path, store, onnx):
    store = ModelStore(tmp_path / MODELS_DIRECTORY, 2)
    version = publish(store, 1, onnx)
    publish(store, 2, onnx)
    assert version is not None
    model = PersonalModel(version.path)
    assert (model.metadata.round, model.reload_if_newer()) == (1, False)


@pytest.mark.medium
def test_a_reader_never_finds_less_than_a_model(tmp_path, store, onnx):
    publish(store, 1, onnx)
    done = threading.Event()

    def replace() -> None:
        for round in range(2, 60):
            publish(store, round, onnx)
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    seen = [0]
    while not done.is_set():
        seen.append(PersonalModel.open(tmp_path, "toy").metadata.round)
    writer.join()
    assert seen == sorted(seen)
    assert PersonalModel.open(tmp_path, "toy").metadata.round == 59


def test_missing_model_error_names_the_round_that_makes_one(tmp_path, store, onnx):
    with pytest.raises(UsageError, match=r"holds no personal model; it comes with the first round .*--state-dir"):
        PersonalModel.open(tmp_path)
    with pytest.raises(UsageError, match="there is no personal model yet"):
        PersonalModel.open(tmp_path, "toy")
    publish(store, 1, onnx)
    publish(store, 1, onnx, task="other")
    with pytest.raises(UsageError, match=r"several tasks, other, toy; say which with --task"):
        PersonalModel.open(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_damaged_model_is_an_error(tmp_path, store, onnx, damage):
    version = publish(store, 1, onnx)
    assert version is not None
    file = version.path / MODEL_FILE
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    else:
        flip_bit(file, 900)
    with pytest.raises(StateError, match=r"model\.onnx: .*(damaged|No such file)"):
        PersonalModel.open(tmp_path)
