"""From a set of labelled images to the data of one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shared.task import DeviceData
from shared.tasks.partition import DataSpec, add_noise, noise_std, partition


@dataclass(frozen=True)
class Images:
    """A set of n images.

    `labels` has shape (n,); `take(positions)` returns the images there, uint8. Of pixels, only a device's share need
    ever be decoded or kept.
    """

    labels: np.ndarray
    take: Callable[[np.ndarray], np.ndarray]


def device_share(spec: DataSpec, train: Images, test: Images, *, white: int, usual_noise: float) -> DeviceData:
    """One device's images as float32 in [0, 1] (`white` becomes 1) with int64 labels; noise on training images alone.

    A noisy device does not count in the mean user accuracy (paper, section 4.2).
    """
    mine_train, mine_test = partition(spec, train.labels, test.labels)
    scale = np.float32(white)
    train_x = train.take(mine_train).astype(np.float32) / scale
    test_x = test.take(mine_test).astype(np.float32) / scale
    std = noise_std(spec, usual_noise)
    return DeviceData(
        train_x=add_noise(train_x, std, spec) if std else train_x,
        train_y=train.labels[mine_train].astype(np.int64),
        test_x=test_x,
        test_y=test.labels[mine_test].astype(np.int64),
        counts_in_ua=not std,
    )
