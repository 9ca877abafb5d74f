"""Task `mnist`: the paper's 2NN on MNIST (section 4.1), from the four official files, or on other data in their format.

A data spec is one of shared.tasks.bundled.partition, for MNIST itself, or

    files:FOLDER               all images in four files of MNIST's format (IDX, with or without gzip) below the data folder
    files:FOLDER,shard:I/N     a share of them, as of MNIST: any spec of shared.tasks.bundled.partition

Such files are not compared with a checksum: their content is the owner's decision.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy
from fedpatch.shared.tasks.bundled.image_shards import Images, device_shares
from fedpatch.shared.tasks.bundled.partition import DataSpec, parse_data_spec
from fedpatch.shared.tasks.downloads import DataFile, fetch
from fedpatch.shared.tasks.task import DeviceData, Task

if TYPE_CHECKING:
    from torch import nn

WHITE = 255
USUAL_NOISE = 3.0  # section 4.2

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")

_IDX_UINT8 = b"\x00\x00\x08"
_GZIP = b"\x1f\x8b"
_OWN_FILES = "files:"
_WHOLE = "shard:0/1"
_SIDE = 28
_BLOCK = 1_000
"""Images that are read at once."""
_FETCH_AGAIN = "delete it to fetch it again"
_REPLACE = "replace it by a whole file in MNIST's format"


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
    """Images as (n, 784) float32 in [0, 1]; `spec` as in this module's docstring."""
    return load_many([spec], root)[0]


def needed_files(spec: str, _root: Path) -> tuple[DataFile, ...]:
    """The files of known content that `load_data` reads; none for the user's own files."""
    folder, _ = _parse(spec)
    return () if folder is not None else (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


def load_many(specs: Sequence[str], root: Path) -> list[DeviceData]:
    """`load_data` of each of `specs`, with the data read only once."""
    parsed = [_parse(spec) for spec in specs]
    shares: dict[int, DeviceData] = {}
    for folder in dict.fromkeys(folder for folder, _ in parsed):
        mine = [place for place, (other, _) in enumerate(parsed) if other == folder]
        train, test = _official(root) if folder is None else _own(root / folder)
        found = device_shares([parsed[one][1] for one in mine], train, test, white=WHITE, usual_noise=USUAL_NOISE)
        shares.update(zip(mine, found, strict=True))
    return [shares[place] for place in range(len(specs))]


def _parse(spec: str) -> tuple[str | None, DataSpec]:
    """The folder of the user's own files (None: MNIST's), and the share of a device."""
    if not spec.startswith(_OWN_FILES):
        return None, parse_data_spec(spec)
    folder, _, share = spec.removeprefix(_OWN_FILES).partition(",")
    if not folder:
        raise UsageError(f"data spec {spec!r} names no folder; write files:FOLDER or files:FOLDER,shard:0/10")
    return folder, parse_data_spec(share or _WHOLE)


def _official(root: Path) -> tuple[Images, Images]:
    files = [_fetched(file, root) for file in (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)]
    return _images(files[0], files[1]), _images(files[2], files[3])


def _fetched(file: DataFile, root: Path) -> Path:
    """As `fetch`, with another error for a complete file of other data in MNIST's format: it must not be deleted."""
    try:
        return fetch(file, root)
    except DataError as error:
        path = file.path(root)
        if not path.is_file() or _idx_problem(path):
            raise
        raise DataError(
            f"mnist: {path} is whole and in MNIST's format, but it is not MNIST's own file. To train on it, move it with the "
            f"other three into a folder of their own below {root}, such as {root / 'own'}, and give the data as files:own or "
            "files:own,shard:0/10; to train on MNIST, move it away, and MNIST's is fetched"
        ) from error


def _own(folder: Path) -> tuple[Images, Images]:
    if not folder.is_dir():
        raise UsageError(f"mnist: {folder} is not a folder; files:FOLDER names one below the data folder (--data-root)")
    train, test = ((_found(folder, images), _found(folder, labels)) for images, labels in _own_names())
    return _own_images(*train), _own_images(*test)


def _own_names() -> Iterator[tuple[str, str]]:
    for images, labels in ((TRAIN_IMAGES, TRAIN_LABELS), (TEST_IMAGES, TEST_LABELS)):
        yield images.name.removesuffix(".gz"), labels.name.removesuffix(".gz")


def _found(folder: Path, name: str) -> Path:
    """The file, also with `.gz`, or with a dot before `idx` as some archives have it."""
    names = [name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz"]
    for one in names:
        if (folder / one).is_file():
            return folder / one
    wanted = ", ".join(first for pair in _own_names() for first in pair)
    raise DataError(f"mnist: {folder} holds no {name}; it needs {wanted}, each with or without .gz")


def _own_images(images: Path, labels: Path) -> Images:
    pixels, found = read_idx(images, _REPLACE), read_idx(labels, _REPLACE)
    if found.ndim != 1 or pixels.ndim < 2:
        raise DataError(
            f"mnist: {images.name} has shape {pixels.shape} and {labels.name} {found.shape} in {images.parent}; images have "
            f"shape (n, {_SIDE}, {_SIDE}) and labels (n,): are the files exchanged?"
        )
    if len(pixels) != len(found):
        raise DataError(
            f"mnist: {images} holds {len(pixels)} images and {labels.name} {len(found)} labels; give one label for each image"
        )
    if len(pixels) and pixels[0].size != _SIDE * _SIDE:
        size = " x ".join(map(str, pixels.shape[1:]))
        raise DataError(
            f"mnist: {images} holds images of {size} pixels; this task's model takes {_SIDE} x {_SIDE}: scale them, or write a "
            "task of your own (fedpatch-agent new-task)"
        )
    wrong = np.flatnonzero(found > 9)
    if len(wrong):
        raise DataError(
            f"mnist: {labels} holds label {found[wrong[0]]} at place {wrong[0]}; this task has the ten classes 0 to 9: number "
            "yours so, or write a task of your own (fedpatch-agent new-task)"
        )
    return _images(images, labels)


def _idx_problem(path: Path) -> str:
    try:
        read_idx(path)
    except (DataError, OSError) as error:
        return str(error)
    return ""


def read_idx(path: Path, remedy: str = _FETCH_AGAIN) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped or not.

    It begins with 00 00 08 and the number of axes; then come their sizes as big-endian uint32, then the values. Raises
    DataError, with `remedy`, where the file is damaged, cut short, too long, or of another format.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == _GZIP or (raw and raw[:3] != _IDX_UINT8 and path.suffix == ".gz"):
            raw = gzip.decompress(raw)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"mnist: {path} is not a whole gzip file ({error}); {remedy}") from error
    except OSError as error:
        raise DataError(f"mnist: {path} cannot be read: {error.strerror or error}") from error
    if len(raw) < 4 or raw[:3] != _IDX_UINT8 or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"mnist: {path} is not an idx file of unsigned bytes; {remedy}")
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    values = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3])
    announced = int(np.prod(shape, dtype=object))
    if len(values) != announced:
        raise DataError(f"mnist: {path} announces {announced} values, holds {len(values)}; {remedy}")
    try:
        return values.reshape(shape)
    except ValueError as error:  # more axes than numpy allows, or a length beyond its limit together with a length of 0
        raise DataError(f"mnist: {path} has a shape that cannot be ({error}); {remedy}") from error


def _images(images: Path, labels: Path) -> Images:
    return Images(read_idx(labels), partial(_take, images))


def _take(path: Path, positions: np.ndarray) -> np.ndarray:
    """Return some images of a file that was checked, (len(positions), pixels) uint8; the file is never whole in memory."""
    order = np.argsort(positions)
    ascending = positions[order]
    with _open_idx(path) as stream:
        axes = stream.read(4)[3]
        size = math.prod(struct.unpack(f">{axes}I", stream.read(4 * axes))[1:])
        found = np.empty((len(positions), size), np.uint8)
        for first in range(0, int(ascending[-1]) + 1 if len(positions) else 0, _BLOCK):
            block = stream.read(_BLOCK * size)
            images = np.frombuffer(block, np.uint8, len(block) // size * size).reshape(-1, size)
            if not len(images):
                raise DataError(f"mnist: {path} has become shorter; {_REPLACE}")
            begin, end = np.searchsorted(ascending, (first, first + len(images)))
            found[order[begin:end]] = images[ascending[begin:end] - first]
    return found


def _open_idx(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as stream:
        zipped = stream.read(2) == _GZIP
    return gzip.open(path) if zipped else path.open("rb")


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
    head=("fc3.*",),
)
