"""From a set of labelled images to the data of one device, or of many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpatch.shared.tasks.bundled.partition import DataSpec, add_noise, noise_std, partitions
from fedpatch.shared.tasks.task import DeviceData
from fedpatch.shared.tasks.validation_split import with_validation


@dataclass(frozen=True)
class Images:
    """A set of n images.

    `labels` has shape (n,); `take(positions)` returns the images there, uint8. Of pixels, only a device's share need
    ever be decoded or kept.
    """

    labels: np.ndarray
    take: Callable[[np.ndarray], np.ndarray]


def device_shares(
    specs: Sequence[DataSpec], train: Images, test: Images, *, white: int, usual_noise: float
) -> list[DeviceData]:
    """Each device's images as float32 in [0, 1] (`white` becomes 1) with int64 labels; noise on training images alone.

    A noisy device does not count in the mean user accuracy (paper, section 4.2). The paper has no validation data: there are
    some, split off the training images, where the spec asks for them. `take` is called once for the training
    and once for the test images; the devices' images are views of one array.
    """
    parts = partitions(specs, train.labels, test.labels)
    train_inputs = _inputs(train, [positions for positions, _ in parts], white)
    test_inputs = _inputs(test, [positions for _, positions in parts], white)
    shares = []
    for spec, (mine_train, mine_test), train_x, test_x in zip(specs, parts, train_inputs, test_inputs, strict=True):
        std = noise_std(spec, usual_noise)
        if std:  # in place, or the clean images would be held beside the noisy ones
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
    """The images at each of `parts`, taken all at once, for a source may have to be read as a whole every time."""
    if not parts:
        return []
    pixels = images.take(np.concatenate(parts))
    inputs = np.divide(pixels, white, dtype=np.float32)
    ends = np.cumsum([len(part) for part in parts])
    return np.split(inputs, ends[:-1])
