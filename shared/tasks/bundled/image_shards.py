"""Data of devices, made of a set of labelled images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpatch.shared.tasks.bundled.partition import DataSpec, add_noise, noise_std, partitions
from fedpatch.shared.tasks.task import DeviceData
from fedpatch.shared.tasks.validation_split import with_validation


@dataclass(frozen=True)
class Images:
    """A set of n images, whose pixels are decoded only when needed.

    Attributes:
        labels: Class numbers, shape (n,).
        take: `take(positions)` returns these images as uint8.
    """

    labels: np.ndarray
    take: Callable[[np.ndarray], np.ndarray]


def device_shares(
    specs: Sequence[DataSpec], train: Images, test: Images, *, white: int, usual_noise: float
) -> list[DeviceData]:
    """Return each device's images as float32 in [0, 1] with int64 labels.

    A noisy device does not count in the mean user accuracy (paper, section 4.2); only its training images are noisy. The paper
    has no validation data: they are split off the training images if a spec asks for them. `take` is called once for training
    and once for test images, and devices' images are views of one array.

    Args:
        specs: Data spec of each device.
        white: Pixel value that becomes 1.
        usual_noise: Standard deviation of the noise of a noisy device whose spec names none.

    Returns:
        The data of each device, in the order of `specs`.

    Raises:
        DataError: There are too few images.
    """
    parts = partitions(specs, train.labels, test.labels)
    train_inputs = _inputs(train, [positions for positions, _ in parts], white)
    test_inputs = _inputs(test, [positions for _, positions in parts], white)
    shares = []
    for spec, (mine_train, mine_test), train_x, test_x in zip(specs, parts, train_inputs, test_inputs, strict=True):
        std = noise_std(spec, usual_noise)
        if std:  # in place, so that clean and noisy images are not in memory together
            train_x[:] = add_noise(train_x, std, spec)
        share = DeviceData(
            train_x=train_x,
            train_y=train.labels[mine_train].astype(np.int64),
            test_x=test_x,
            test_y=test.labels[mine_test].astype(np.int64),
            counts_in_ua=not std,
        )
        shares.append(with_validation(share, spec.validation))
    return shares


def _inputs(images: Images, parts: Sequence[np.ndarray], white: int) -> list[np.ndarray]:
    """Return the images of each of `parts`. All are taken by one call, because a source may be read as a whole each time."""
    if not parts:
        return []
    pixels = images.take(np.concatenate(parts))
    inputs = np.divide(pixels, white, dtype=np.float32)
    ends = np.cumsum([len(part) for part in parts])
    return np.split(inputs, ends[:-1])
