"""Task `digits`: the 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn; nothing is downloaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy
from fedpatch.shared.tasks.bundled.image_shards import Images, device_shares
from fedpatch.shared.tasks.bundled.partition import parse_data_spec
from fedpatch.shared.tasks.task import DeviceData, Task

if TYPE_CHECKING:
    from torch import nn

SPLIT_SEED = 1797
TEST_EVERY = 5
WHITE = 16
USUAL_NOISE = 3.0  # as for MNIST


def build_model() -> nn.Module:
    """A small relative of the paper's 2NN: 64 -> FC 100 -> ReLU -> BN -> FC 50 -> ReLU -> FC 10."""
    from torch import nn

    return nn.Sequential(
        OrderedDict[str, nn.Module](
            fc1=nn.Linear(64, 100),
            relu1=nn.ReLU(),
            bn1=nn.BatchNorm1d(100),
            fc2=nn.Linear(100, 50),
            relu2=nn.ReLU(),
            fc3=nn.Linear(50, 10),
        )
    )


def load_data(spec: str, root: Path) -> DeviceData:
    """Images as (n, 64) float32 in [0, 1]; `spec` as in shared.tasks.bundled.partition. `root` is not used."""
    return load_many([spec], root)[0]


def load_many(specs: Sequence[str], root: Path) -> list[DeviceData]:
    """`load_data` of each of `specs`, with the data read only once."""
    parsed = [parse_data_spec(spec) for spec in specs]
    pixels, labels = _read_digits()
    is_test = _test_mask(labels)
    train, test = (_images(pixels[chosen], labels[chosen]) for chosen in (~is_test, is_test))
    return device_shares(parsed, train, test, white=WHITE, usual_noise=USUAL_NOISE)


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (n, 64), uint8, and labels (n,), int64, from scikit-learn's file.

    The import of scikit-learn takes 0.8 s of processor time, and reading the file 0.03 s.
    """
    package = find_spec("sklearn")
    folders = package.submodule_search_locations if package else None
    if not folders:
        raise DataError("digits: scikit-learn holds the data and is not installed: pip install 'fedpatch[demo]'")
    path = Path(folders[0], "datasets", "data", "digits.csv.gz")
    try:
        rows = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise DataError(f"digits: {path} cannot be read ({error}); install scikit-learn again") from error
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def _test_mask(labels: np.ndarray) -> np.ndarray:
    """Mark a fifth of each label's examples, always the same ones. With equal shares the shards of both parts agree."""
    shuffled = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[by_label[::TEST_EVERY]] = True
    return is_test


def _images(pixels: np.ndarray, labels: np.ndarray) -> Images:
    return Images(labels, lambda positions: pixels[positions])


TASK = Task(
    name="digits",
    description="handwritten digits, 8 x 8 pixels, from scikit-learn (no download)",
    build_model=build_model,
    load_data=load_data,
    loss=cross_entropy,
    metric=accuracy,
    batch_size=20,
    learning_rates={"fedavg": 0.5, "fedadam": 0.3, "fedavg-adam": 0.01},
    server_learning_rates={"fedadam": 0.01},
    demo_data="shard:{index}/{count},validation=0.1",
    load_many=load_many,
    simulation_data="shard:{index}/{count},seed={seed}",
    class_names=tuple("0123456789"),
    input_shape=(64,),
    metric_takes_arrays=True,
    head=("fc3.*",),
)
