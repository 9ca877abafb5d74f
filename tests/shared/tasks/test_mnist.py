"""The mnist task: the paper's 2NN, and the official files."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.task_checks.data_checks import checked
from fedpatch.shared.tasks.bundled import mnist
from fedpatch.shared.tasks.bundled.mnist import (
    TASK,
    TRAIN_IMAGES,
    read_idx,
)

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def _idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def test_the_2nn_has_the_papers_size():
    model = TASK.build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 199_610
    assert sum(buffer.numel() for buffer in model.buffers() if buffer.dtype == torch.float32) == 400
    assert model(torch.zeros(3, 784)).shape == (3, 10)


def test_idx_files_are_read(tmp_path):
    for values in (IMAGES, IMAGES[0, 0]):
        path = tmp_path / "file.gz"
        path.write_bytes(gzip.compress(_idx(values)))
        assert np.array_equal(read_idx(path), values)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(_idx(IMAGES))[:-12], "not a whole gzip file"),
        (b"<html>not here</html>", "not a whole gzip file"),
        (b"", "not an idx file"),
        (gzip.compress(b"\x00\x00\x0d\x01" + bytes(8)), "not an idx file of unsigned bytes"),
        (gzip.compress(_idx(IMAGES)[:9]), "not an idx file"),
        (gzip.compress(_idx(IMAGES)[:-1]), "announces 24 values, holds 23"),
        (gzip.compress(_idx(IMAGES) + b"x"), "announces 24 values, holds 25"),
        (gzip.compress(b"\x00\x00\x08\x03" + b"\xff" * 12), "announces 79228162458924105385300197375 values, holds 0"),
    ],
    ids=["cut off", "html", "empty", "signed", "half a header", "a byte less", "a byte more", "huge"],
)
def test_damaged_idx_file_is_named_with_a_remedy(tmp_path, content, problem):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"mnist: {path} .*{problem}.*; delete it to fetch it again"):
        read_idx(path)


def test_a_wrong_spec_costs_no_download(tmp_path):
    """The data spec is parsed before any file is fetched."""
    with pytest.raises(UsageError, match="data spec 'shrad:0/200'"):
        TASK.load_data("shrad:0/200", tmp_path)
    assert list(tmp_path.iterdir()) == []


def _small_mnist(root, monkeypatch):
    """Write four files like the official ones, with 40 training and 20 test images of 2 x 2 pixels and valid checksums."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 2, 2), dtype=np.uint8)
    labels = np.arange(40, dtype=np.uint8) % 10
    contents = {"TRAIN_IMAGES": pixels, "TRAIN_LABELS": labels, "TEST_IMAGES": pixels[:20], "TEST_LABELS": labels[:20]}
    for name, values in contents.items():
        file = getattr(mnist, name)
        path = file.path(root)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(_idx(values)))
        monkeypatch.setattr(mnist, name, replace(file, sha256=hashlib.sha256(path.read_bytes()).hexdigest()))


def test_many_devices_at_once_get_what_each_gets_alone_from_one_reading(tmp_path, monkeypatch):
    _small_mnist(tmp_path, monkeypatch)
    specs = [*(f"shard:{index}/5" for index in range(5)), "aligned:1/2,seed=3", "shard:4/5,noisy", "shard:4/5"]
    alone = [TASK.load_data(spec, tmp_path) for spec in specs]
    read: Counter[str] = Counter()
    for step in ("fetch", "read_idx", "_take"):
        counted = getattr(mnist, step)
        monkeypatch.setattr(mnist, step, lambda *a, name=step, real=counted: (read.update([name]), real(*a))[1])
    assert TASK.load_many is not None
    for data, expected in zip(TASK.load_many(specs, tmp_path), alone, strict=True):
        assert data.counts_in_ua == expected.counts_in_ua
        for part in ("train_x", "train_y", "test_x", "test_y"):
            assert np.array_equal(getattr(data, part), getattr(expected, part))
    assert read == {"fetch": 4, "read_idx": 2, "_take": 2}


def _own_files(folder, *, gz=False, side=28, label=9, count=40):
    """Write four files of a user in MNIST's format."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for kind, size in (("train", count), ("t10k", 20)):
        pixels = rng.integers(0, 256, (size, side, side), dtype=np.uint8)
        labels = (np.arange(size) % (label + 1)).astype(np.uint8)
        for name, values in ((f"{kind}-images-idx3-ubyte", pixels), (f"{kind}-labels-idx1-ubyte", labels)):
            content = _idx(values)
            (folder / f"{name}{'.gz' if gz else ''}").write_bytes(gzip.compress(content) if gz else content)


@pytest.mark.parametrize("gz", [False, True])
def test_files_of_ones_own_in_mnists_format_are_trained_on(tmp_path, gz):
    _own_files(tmp_path / "letters", gz=gz)
    data = TASK.load_data("files:letters", tmp_path)
    assert (data.train_x.shape, data.test_x.shape) == ((40, 784), (20, 784))
    assert data.train_x.dtype == np.float32 and data.train_x.max() <= 1.0
    assert sorted(data.train_y.tolist()) == sorted(np.arange(40) % 10)
    assert TASK.load_many is not None
    shares = TASK.load_many([f"files:letters,shard:{one}/4,seed=3" for one in range(4)], tmp_path)
    assert sum(len(one.train_x) for one in shares) == 40
    checked(TASK, data, "device pi")


def test_the_name_with_a_dot_before_idx_is_found_too(tmp_path):
    _own_files(tmp_path / "own")
    for path in list((tmp_path / "own").iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(TASK.load_data("files:own", tmp_path).train_x) == 40


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (
            lambda folder: _own_files(folder, side=32),
            "holds images of 32 x 32 pixels; this task's model takes 28 x 28: scale",
        ),
        (
            lambda folder: _own_files(folder, label=25),
            "holds label 10 at place 10; this task has the ten classes 0 to 9",
        ),
        (
            lambda folder: folder.mkdir(),
            "holds no train-images-idx3-ubyte; it needs train-images-idx3-ubyte, train-labels",
        ),
    ],
)
def test_files_that_the_model_cannot_take_are_named(tmp_path, prepare, problem):
    prepare(tmp_path / "own")
    with pytest.raises(DataError, match=problem) as caught:
        TASK.load_data("files:own", tmp_path)
    assert "delete it" not in str(caught.value)


def test_images_and_labels_that_do_not_belong_together_are_named(tmp_path):
    _own_files(tmp_path / "own")
    folder = tmp_path / "own"
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    images.rename(folder / "x")
    labels.rename(images)
    (folder / "x").rename(labels)
    with pytest.raises(DataError, match="are the files exchanged"):
        TASK.load_data("files:own", tmp_path)
    images.write_bytes(_idx(np.zeros((7, 28, 28), np.uint8)))
    labels.write_bytes(_idx(np.zeros(8, np.uint8)))
    with pytest.raises(DataError, match="holds 7 images and train-labels-idx1-ubyte 8 labels; give one label"):
        TASK.load_data("files:own", tmp_path)


def test_a_damaged_file_of_ones_own_is_to_be_replaced(tmp_path):
    _own_files(tmp_path / "own")
    path = tmp_path / "own" / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="announces 20 values, holds 19; replace it by a whole file"):
        TASK.load_data("files:own", tmp_path)


@pytest.mark.parametrize("spec", ["files:", "files:,shard:0/2", "files:own,shrad:0/2", "files:nowhere"])
def test_a_wrong_spec_of_ones_own_files_is_refused(tmp_path, spec):
    with pytest.raises(UsageError):
        TASK.load_data(spec, tmp_path)


def test_ones_own_files_under_mnists_names_are_not_called_damaged(tmp_path):
    """The files are whole: the message explains how to train on them, and does not advise to delete them."""
    _own_files(tmp_path / "mnist", gz=True)
    with pytest.raises(DataError) as caught:
        TASK.load_data("shard:0/2", tmp_path)
    text = str(caught.value)
    assert "is whole and in MNIST's format, but it is not MNIST's own file" in text
    assert "files:own,shard:0/10" in text and "delete" not in text
    path = tmp_path / "mnist" / TRAIN_IMAGES.name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="delete it to fetch it again"):
        TASK.load_data("shard:0/2", tmp_path)


@pytest.mark.real_data("mnist/train-images-idx3-ubyte.gz")
def test_one_of_200_devices_gets_its_share_of_mnist(real_data):
    data = TASK.load_data("shard:3/200", real_data)
    assert (data.train_x.shape, data.test_x.shape) == ((300, 784), (50, 784))
    assert [data.train_x.dtype, data.train_y.dtype] == [np.float32, np.int64]
    assert (data.train_x.min(), data.train_x.max()) == (0.0, 1.0)
    assert len(np.unique(data.train_y)) <= 4


@pytest.mark.real_data("mnist/train-images-idx3-ubyte.gz")
def test_5000_devices_share_all_of_mnist(real_data):
    assert TASK.load_many is not None
    shares = TASK.load_many([TASK.simulation_data.format(index=i, count=5000, seed=1) for i in range(5000)], real_data)
    assert sum(len(data.train_x) for data in shares) == 60_000
    assert sum(len(data.test_x) for data in shares) == 10_000


@pytest.mark.real_data("mnist/train-images-idx3-ubyte.gz")
def test_the_papers_noise_is_the_usual_one(real_data):
    """A share of the devices is drawn to be noisy; standard deviation 3 leaves few pixels between black and white."""
    noisy = [i for i in range(8) if not TASK.load_data(f"shard:{i}/8,noisy-fraction=0.25", real_data).counts_in_ua]
    assert len(noisy) == 2
    data = TASK.load_data(f"shard:{noisy[0]}/8,noisy-fraction=0.25", real_data)
    assert 0.05 < np.mean((data.train_x > 0) & (data.train_x < 1)) < 0.2
