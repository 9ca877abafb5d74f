"""Task `cifar10`: the paper's CNN on CIFAR-10 (section 4.1), from the official binary archive.

If that archive is absent, a re-encoded copy in the data folder is used (`cifar10-jpeg75/cifar10_jpeg75.npz`: every image as
JPEG of quality 75, in the original order). Its pixels differ from the official ones, so results with it must be named
"CIFAR-10 (JPEG q75)".
"""

from __future__ import annotations

import io
import logging
import tarfile
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpatch.shared.app.plugins import import_optional
from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy
from fedpatch.shared.tasks.bundled.image_shards import Images, device_shares
from fedpatch.shared.tasks.bundled.partition import parse_data_spec
from fedpatch.shared.tasks.downloads import DataFile, fetch
from fedpatch.shared.tasks.task import DeviceData, Task

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("fedpatch.data")

WHITE = 255
USUAL_NOISE = 0.2  # section 4.2
SHAPE = (3, 32, 32)
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

ARCHIVE = DataFile(
    "cifar10",
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
JPEG75 = DataFile(
    "cifar10-jpeg75",
    "cifar10_jpeg75.npz",
    "81dadbeec2773aaa2e4690f9db0a38822f051b138dd35257e876fabdd581ae77",
)

_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}
_RECORD_BYTES = 1 + 3 * 32 * 32


def build_model() -> nn.Module:
    """The paper's CNN: twice 3x3 convolution -> ReLU -> max pooling -> BN, then FC 512 -> ReLU -> FC 10.

    It has 1,204,874 parameters.
    """
    from torch import nn

    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(3, 32, kernel_size=3),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            bn1=nn.BatchNorm2d(32),
            conv2=nn.Conv2d(32, 64, kernel_size=3),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            bn2=nn.BatchNorm2d(64),
            flatten=nn.Flatten(),
            fc1=nn.Linear(2304, 512),
            relu3=nn.ReLU(),
            fc2=nn.Linear(512, 10),
        )
    )


def load_data(spec: str, root: Path) -> DeviceData:
    """Images as (n, 3, 32, 32) float32 in [0, 1]; `spec` as in shared.tasks.bundled.partition."""
    return load_many([spec], root)[0]


def needed_files(_spec: str, root: Path) -> tuple[DataFile, ...]:
    """The file that `load_data` reads."""
    return (JPEG75 if JPEG75.path(root).exists() and not ARCHIVE.path(root).exists() else ARCHIVE,)


def load_many(specs: Sequence[str], root: Path) -> list[DeviceData]:
    """`load_data` of each of `specs`, with the data read only once."""
    parsed = [parse_data_spec(spec) for spec in specs]
    (file,) = needed_files("", root)
    if file is JPEG75:
        log.warning("cifar10: %s is absent; name results CIFAR-10 (JPEG q75)", ARCHIVE.name)
        train, test = read_jpeg75(fetch(file, root))
    else:
        train, test = read_archive(fetch(file, root))
    return device_shares(parsed, train, test, white=WHITE, usual_noise=USUAL_NOISE)


def read_archive(path: Path) -> tuple[Images, Images]:
    """Read the official binary archive, without unpacking it to disk; returns training and test images.

    A record is one byte of label and 32 x 32 bytes each of red, green and blue. Raises DataError where the archive is
    damaged.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            train, test = (
                np.concatenate([_records(archive, member) for member in _MEMBERS[part]]) for part in ("train", "test")
            )
    except (tarfile.TarError, KeyError, EOFError, OSError, ValueError, zlib.error) as error:
        raise DataError(
            f"cifar10: {path} is not CIFAR-10's binary archive ({error}); delete it to fetch it again"
        ) from error
    return _raw_images(train), _raw_images(test)


def _records(archive: tarfile.TarFile, member: str) -> np.ndarray:
    stream = archive.extractfile(member)
    if stream is None:
        raise ValueError(f"{member} is not a file")
    return np.frombuffer(stream.read(), dtype=np.uint8).reshape(-1, _RECORD_BYTES)


def _raw_images(records: np.ndarray) -> Images:
    return Images(records[:, 0], lambda positions: records[positions, 1:].reshape(-1, *SHAPE))


def read_jpeg75(path: Path) -> tuple[Images, Images]:
    """Read the re-encoded copy; returns training and test images, which are decoded only when taken.

    Raises DataError where the file is damaged, or Pillow, which decodes, is not installed.
    """
    why = f"cifar10: {path.name} holds JPEGs, which Pillow decodes"
    pillow = import_optional("PIL.Image", why, "pip install pillow", DataError)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train, test = (_jpeg_images(pillow, arrays, part) for part in ("train", "test"))
    except (KeyError, ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"cifar10: {path} is not a copy of CIFAR-10 as JPEG ({error}); replace it") from error
    return train, test


def _jpeg_images(pillow: Any, arrays: Mapping[str, np.ndarray], part: str) -> Images:
    return Images(arrays[f"{part}_labels"], partial(_decode, pillow, arrays[f"{part}_jpeg"], arrays[f"{part}_offsets"]))


def _decode(pillow: Any, jpeg: np.ndarray, offsets: np.ndarray, positions: np.ndarray) -> np.ndarray:
    decoded = np.empty((len(positions), *SHAPE), dtype=np.uint8)
    for place, position in enumerate(positions):
        image = pillow.open(io.BytesIO(jpeg[offsets[position] : offsets[position + 1]].tobytes()))
        decoded[place] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    return decoded


TASK = Task(
    name="cifar10",
    description="CIFAR-10, the paper's CNN (170 MB of data)",
    build_model=build_model,
    load_data=load_data,
    loss=cross_entropy,
    metric=accuracy,
    batch_size=20,
    learning_rates={"fedavg": 0.1, "fedadam": 0.1, "fedavg-adam": 0.003},
    server_learning_rates={"fedadam": 0.01},
    demo_data="shard:{index}/{count},validation=0.1",
    load_many=load_many,
    simulation_data="shard:{index}/{count},seed={seed}",
    class_names=CLASS_NAMES,
    input_shape=SHAPE,
    metric_takes_arrays=True,
    head=("fc2.*",),
)
