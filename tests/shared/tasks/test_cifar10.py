"""The cifar10 task: the paper's CNN, the official binary archive, and the JPEG copy that may replace it."""

from __future__ import annotations

import hashlib
import io
import logging
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.bundled import cifar10
from fedpatch.shared.tasks.bundled.cifar10 import TASK, read_archive, read_jpeg75

NUMBERS = np.random.default_rng(10)
LABELS = np.tile(np.arange(10, dtype=np.uint8), 2)
PIXELS = NUMBERS.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
RECORDS = np.concatenate([LABELS[:, None], PIXELS.reshape(20, -1)], axis=1)
TEST_BATCH = "cifar-10-batches-bin/test_batch.bin"


def _members() -> dict[str, bytes]:
    """A small CIFAR-10: every batch holds the same 20 images, rotated by its number."""
    batches = {f"cifar-10-batches-bin/data_batch_{n}.bin": np.roll(RECORDS, n, axis=0).tobytes() for n in range(1, 6)}
    return {**batches, TEST_BATCH: RECORDS.tobytes(), "cifar-10-batches-bin/readme.html": b"hello"}


def _write_archive(path, members):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def jpeg75(tmp_path):
    """A small JPEG copy: two training images, one test image; each of one colour, black below; labelled 3, 4, 5."""
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    arrays: dict[str, Any] = {"train_labels": np.array([3, 4], np.uint8), "test_labels": np.array([5], np.uint8)}
    for part, colours in (("train", [(255, 0, 0), (0, 255, 0)]), ("test", [(0, 0, 255)])):
        files = []
        for colour in colours:
            stream = io.BytesIO()
            image = pillow.new("RGB", (32, 32), colour)
            image.paste((0, 0, 0), (0, 16, 32, 32))
            image.save(stream, "JPEG", quality=75)
            files.append(stream.getvalue())
        arrays[f"{part}_jpeg"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
    path = tmp_path / "copy.npz"
    np.savez(path, **arrays)
    return path


def _promise(monkeypatch, name, path):
    """Let the module expect the content of `path`."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar10, name, replace(getattr(cifar10, name), sha256=sha256))


def test_the_cnn_has_the_papers_size():
    model = TASK.build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_204_874
    assert sum(buffer.numel() for buffer in model.buffers() if buffer.dtype == torch.float32) == 2 * (32 + 64)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_official_archive_is_read_in_order(tmp_path):
    path = tmp_path / "archive.tar.gz"
    _write_archive(path, _members())
    train, test = read_archive(path)
    assert np.array_equal(train.labels, np.concatenate([np.roll(LABELS, n) for n in range(1, 6)]))
    assert np.array_equal(test.take(np.array([7, 0])), PIXELS[[7, 0]])
    assert np.array_equal(train.take(np.array([20])), PIXELS[[18]])


@pytest.mark.parametrize("damage", ["cut", "foreign", "member missing", "member cut", "member a folder"])
def test_damaged_archive_is_named_with_a_remedy(tmp_path, damage):
    path = tmp_path / "archive.tar.gz"
    members = _members()
    if damage == "member missing":
        del members[TEST_BATCH]
    elif damage == "member cut":
        members[TEST_BATCH] = members[TEST_BATCH][:-1]
    _write_archive(path, members)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-2000])
    elif damage == "foreign":
        path.write_bytes(b"<html>not here</html>")
    elif damage == "member a folder":
        with tarfile.open(path, "w:gz") as archive:
            info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
    with pytest.raises(DataError, match=f"cifar10: {path} is not CIFAR-10's binary archive .*delete it"):
        read_archive(path)


def test_a_device_gets_its_share_of_the_archive(tmp_path, monkeypatch):
    path = cifar10.ARCHIVE.path(tmp_path)
    _write_archive(path, _members())
    _promise(monkeypatch, "ARCHIVE", path)
    data = TASK.load_data("shard:1/5", tmp_path)
    assert (data.train_x.shape, data.test_x.shape) == ((20, 3, 32, 32), (4, 3, 32, 32))
    assert [data.train_x.dtype, data.train_y.dtype] == [np.float32, np.int64]
    assert set(data.train_y) == set(data.test_y)
    assert 0.0 <= data.train_x.min() < data.train_x.max() <= 1.0


def test_many_devices_at_once_get_what_each_gets_alone_from_one_reading(tmp_path, monkeypatch):
    path = cifar10.ARCHIVE.path(tmp_path)
    _write_archive(path, _members())
    _promise(monkeypatch, "ARCHIVE", path)
    specs = ["shard:1/5", "aligned:0/2,seed=3", "shard:4/5,noisy", "shard:1/5"]
    alone = [TASK.load_data(spec, tmp_path) for spec in specs]
    calls: Counter[str] = Counter()
    for step in ("fetch", "read_archive"):
        counted = getattr(cifar10, step)
        monkeypatch.setattr(cifar10, step, lambda *a, name=step, real=counted: (calls.update([name]), real(*a))[1])
    assert TASK.load_many is not None
    for data, expected in zip(TASK.load_many(specs, tmp_path), alone, strict=True):
        assert data.counts_in_ua == expected.counts_in_ua
        assert np.array_equal(data.train_x, expected.train_x)
        assert np.array_equal(data.train_y, expected.train_y)
        assert np.array_equal(data.test_x, expected.test_x)
        assert np.array_equal(data.test_y, expected.test_y)
    assert calls == {"fetch": 1, "read_archive": 1}


def test_the_jpeg_copy_is_decoded_channels_first(jpeg75):
    train, test = read_jpeg75(jpeg75)
    assert (train.labels.tolist(), test.labels.tolist()) == ([3, 4], [5])
    green, red = train.take(np.array([1, 0])).astype(int)
    assert green[:, 0, 0] == pytest.approx([0, 255, 0], abs=3)
    assert red[:, 0, 31] == pytest.approx([255, 0, 0], abs=3)
    assert red[:, 31, 0] == pytest.approx([0, 0, 0], abs=3)
    assert test.take(np.array([0])).shape == (1, 3, 32, 32)


def test_the_jpeg_copy_stands_in_for_the_archive_with_a_warning(jpeg75, tmp_path, monkeypatch, caplog):
    root = tmp_path / "data"
    copy = cifar10.JPEG75.path(root)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(jpeg75.read_bytes())
    _promise(monkeypatch, "JPEG75", copy)
    with caplog.at_level(logging.WARNING, "fedpatch.data"), pytest.raises(DataError, match="1 test examples cannot"):
        TASK.load_data("shard:0/1", root)
    assert "CIFAR-10 (JPEG q75)" in caplog.text
    caplog.clear()
    _write_archive(cifar10.ARCHIVE.path(root), _members())
    _promise(monkeypatch, "ARCHIVE", cifar10.ARCHIVE.path(root))
    assert len(TASK.load_data("shard:0/1", root).train_x) == 100
    assert caplog.text == ""


def test_without_pillow_the_message_names_it(jpeg75, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match="pip install pillow"):
        read_jpeg75(jpeg75)


def test_a_damaged_jpeg_copy_is_named(tmp_path):
    pytest.importorskip("PIL.Image", reason="needs Pillow")
    path = tmp_path / "copy.npz"
    path.write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=f"{path} is not a copy of CIFAR-10 as JPEG"):
        read_jpeg75(path)
    np.savez(path, train_labels=LABELS)
    with pytest.raises(DataError, match=f"{path} is not a copy of CIFAR-10 as JPEG"):
        read_jpeg75(path)


@pytest.mark.real_data("cifar10-jpeg75/cifar10_jpeg75.npz")
def test_one_of_200_devices_gets_its_share_of_the_real_copy(real_data):
    pytest.importorskip("PIL.Image", reason="needs Pillow")
    data = TASK.load_data("shard:3/200", real_data)
    assert (data.train_x.shape, data.test_x.shape) == ((250, 3, 32, 32), (50, 3, 32, 32))
    assert 0.2 < data.train_x.mean() < 0.7
