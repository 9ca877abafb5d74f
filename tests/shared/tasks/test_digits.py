"""The digits task: always the same data, and a model that learns it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.bundled.digits import TASK
from fedpatch.shared.tasks.task import DeviceData, find_task
from tests.support.examples import examples

NOWHERE = Path("/nonexistent")


SPECS = st.builds(
    "{}:{}/{},seed={}{}".format,
    st.sampled_from(["shard", "aligned"]),
    st.integers(0, 6),
    st.integers(7, 9),
    st.integers(0, 2),
    st.sampled_from(["", ",noisy", ",noise=0.5", ",noisy-fraction=0.5", ",validation=0.2"]),
)


def _load(spec: str) -> DeviceData:
    return TASK.load_data(spec, NOWHERE)


def test_the_installed_name_leads_here():
    assert find_task("digits") is TASK


def test_ten_devices_hold_all_1797_digits():
    devices = [_load(TASK.demo_data.format(index=index, count=10)) for index in range(10)]
    assert sum(len(data.train_x) + (0 if data.val_x is None else len(data.val_x)) for data in devices) == 1437
    assert sum(len(data.test_x) for data in devices) == 360
    for data in devices:
        assert data.train_x.shape[1:] == data.test_x.shape[1:] == (64,)
        assert data.train_x.dtype == data.test_x.dtype == np.float32
        assert data.train_y.dtype == data.test_y.dtype == np.int64
        assert 0.0 <= data.train_x.min() < data.train_x.max() == 1.0
        assert data.counts_in_ua


def test_every_image_keeps_its_label():
    pixels, labels = load_digits(return_X_y=True)
    label_of = {image.tobytes(): label for image, label in zip(pixels.astype(np.float32) / 16, labels, strict=True)}
    data = _load("shard:2/10")
    for images, targets in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert [label_of[image.tobytes()] for image in images] == targets.tolist()


def test_training_and_test_examples_are_apart_and_always_the_same():
    whole = [_load(spec) for spec in ("shard:0/1", "aligned:0/1,seed=9")]
    for data in whole:
        train, test = ({image.tobytes() for image in images} for images in (data.train_x, data.test_x))
        assert not train & test
    assert np.array_equal(whole[0].test_x, whole[1].test_x)


def test_a_noisy_device_trains_on_noise_and_does_not_count():
    clean, noisy = _load("shard:2/10"), _load("shard:2/10,noisy")
    assert not noisy.counts_in_ua
    assert np.array_equal(noisy.test_x, clean.test_x)
    assert np.array_equal(noisy.train_y, clean.train_y)
    assert np.mean(np.isin(noisy.train_x, [0.0, 1.0])) > 0.8


@pytest.mark.parametrize("place", ["shard:2/10", "aligned:2/10,seed=3"])
def test_a_shard_without_validation_is_the_papers_split(place):
    """All training examples are trained on; a validation part takes some of them, and the test part stays the same."""
    paper, demo = _load(place), _load(f"{place},validation=0.1")
    assert paper.val_x is not None and demo.val_x is not None and demo.val_y is not None
    assert len(paper.val_x) == 0
    assert len(demo.train_x) + len(demo.val_x) == len(paper.train_x)
    assert 5 <= len(demo.val_x) <= 25
    assert np.array_equal(demo.test_x, paper.test_x)
    targets = {image.tobytes(): target for image, target in zip(paper.train_x, paper.train_y, strict=True)}
    for images, own in ((demo.train_x, demo.train_y), (demo.val_x, demo.val_y)):
        assert [targets[image.tobytes()] for image in images] == own.tolist()


@examples(20)
@given(st.lists(SPECS, max_size=4))
def test_many_devices_at_once_get_what_each_gets_alone(specs):
    """Specs of one call may name any splits, and the same spec twice: each gives the same bits as `load_data`."""
    assert TASK.load_many is not None
    for spec, data in zip(specs, TASK.load_many(specs, NOWHERE), strict=True):
        alone = _load(spec)
        assert data.counts_in_ua == alone.counts_in_ua
        for part in ("train_x", "train_y", "test_x", "test_y", "val_x", "val_y"):
            found, expected = getattr(data, part), getattr(alone, part)
            assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_a_simulation_shares_out_the_whole_data_set_by_its_seed():
    specs = [TASK.simulation_data.format(index=index, count=10, seed=4) for index in range(10)]
    assert specs[3] == "shard:3/10,seed=4"
    assert sum(len(_load(spec).train_x) for spec in specs) == 1437


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr("fedpatch.shared.tasks.bundled.digits.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'fedpatch\[demo\]'"):
        _load("shard:0/10")


def test_the_model_learns_the_digits():
    data = _load("shard:0/1")
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TASK.build_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=TASK.learning_rates["fedavg-adam"])
        for batch in (batch for _ in range(3) for batch in torch.randperm(len(x)).split(TASK.batch_size)):
            optimizer.zero_grad()
            TASK.loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(data.test_x))
    assert TASK.metric(outputs, torch.from_numpy(data.test_y)) >= 0.85
