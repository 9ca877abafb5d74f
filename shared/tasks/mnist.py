"""Task `mnist`: the paper's 2NN on MNIST (section 4.1), from the four official files."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import DataError
from shared.task import DeviceData, Task
from shared.tasks.classification import accuracy, cross_entropy
from shared.tasks.files import DataFile, fetch
from shared.tasks.partition import parse_data_spec
from shared.tasks.share import Images, device_shares

if TYPE_CHECKING:
    from torch import nn

WHITE = 255
USUAL_NOISE = 3.0  # section 4.2

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")

_IDX_UINT8 = b"\x00\x00\x08"


def _file(name: str, sha256: str) -> DataFile:
    return DataFile("mnist", name, sha256, tuple(mirror + name for mirror in MIRRORS))


TRAIN_IMAGES = _file("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609")
TRAIN_LABELS = _file("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c")
TEST_IMAGES = _file("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6")
TEST_LABELS = _file("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6")


def build_model() -> nn.Module:
    """The paper's 2NN: 784 -> FC 200 -> ReLU -> BN -> FC 200 -> ReLU -> FC 10; 199,610 parameters."""
    from torch import nn

    return nn.Sequential(
        OrderedDict[str, nn.Module](
            fc1=nn.Linear(784, 200),
            relu1=nn.ReLU(),
            bn1=nn.BatchNorm1d(200),
            fc2=nn.Linear(200, 200),
            relu2=nn.ReLU(),
            fc3=nn.Linear(200, 10),
        )
    )


def load_data(spec: str, root: Path) -> DeviceData:
    """Images as (n, 784) float32 in [0, 1]; `spec` as in shared.tasks.partition."""
    return load_many([spec], root)[0]


def load_many(specs: Sequence[str], root: Path) -> list[DeviceData]:
    """`load_data` of each of `specs`, with the data read only once."""
    parsed = [parse_data_spec(spec) for spec in specs]
    train = _images(fetch(TRAIN_IMAGES, root), fetch(TRAIN_LABELS, root))
    test = _images(fetch(TEST_IMAGES, root), fetch(TEST_LABELS, root))
    return device_shares(parsed, train, test, white=WHITE, usual_noise=USUAL_NOISE)


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped idx file of unsigned bytes.

    It begins with 00 00 08 and the number of axes; then come their sizes as big-endian uint32, then the values. Raises
    DataError where the file is damaged, cut short, too long, or something else.
    """
    try:
        with gzip.open(path) as stream:
            raw = stream.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"mnist: {path} is not a whole gzip file ({error}); delete it to fetch it again") from error
    if len(raw) < 4 or raw[:3] != _IDX_UINT8 or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"mnist: {path} is not an idx file of unsigned bytes; delete it to fetch it again")
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    values = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3])
    announced = int(np.prod(shape, dtype=object))
    if len(values) != announced:
        raise DataError(f"mnist: {path} announces {announced} values, holds {len(values)}; delete it to fetch it again")
    try:
        return values.reshape(shape)
    except ValueError as error:  # more axes than numpy has, or lengths beyond it beside one of 0
        raise DataError(f"mnist: {path} has a shape that cannot be ({error}); delete it to fetch it again") from error


def _images(images: Path, labels: Path) -> Images:
    return Images(read_idx(labels), partial(_take, images))


def _take(path: Path, positions: np.ndarray) -> np.ndarray:
    images: np.ndarray = read_idx(path)[positions]
    return images.reshape(len(positions), -1)


TASK = Task(
    name="mnist",
    description="MNIST, the paper's 2NN (11.6 MB of data)",
    build_model=build_model,
    load_data=load_data,
    loss=cross_entropy,
    metric=accuracy,
    batch_size=20,
    learning_rates={"fedavg": 0.3, "fedadam": 0.3, "fedavg-adam": 0.003},
    server_learning_rates={"fedadam": 0.01},
    demo_data="shard:{index}/{count},validation=0.1",
    load_many=load_many,
    simulation_data="shard:{index}/{count},seed={seed}",
    class_names=tuple("0123456789"),
    input_shape=(784,),
    metric_takes_arrays=True,
)
