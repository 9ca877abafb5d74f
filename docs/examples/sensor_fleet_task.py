"""Task `sensor-fleet`: what a machine does, from windows of three vibration sensors; generated, seeded, without files.

Each device has its own gains, offsets and mounting, sensors that drift, and a mix of the six states of its own. A data spec is
`machine:NUMBER` or `machine:NUMBER,seed=SEED`; the seed draws another fleet.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from fedpatch import DeviceData, Task, UsageError, examples, metrics, splits

STATES = ("off", "idle", "spinning", "cutting", "grinding", "jammed")
CHANNELS, WINDOW, READINGS = 3, 16, 4_000
_BLOCK = 5
"""Windows in a test block, about as long as a state lasts."""


def build_model() -> nn.Module:
    """Two layers with batch norm between them, and the head `fc2`; 5,478 parameters."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            flatten=nn.Flatten(),
            fc1=nn.Linear(CHANNELS * WINDOW, 96),
            relu1=nn.ReLU(),
            bn1=nn.BatchNorm1d(96),
            fc2=nn.Linear(96, len(STATES)),
        )
    )


def read_series(number: int, seed: int) -> examples.Examples:
    """Return the readings of a machine in order of time: x of shape (READINGS, CHANNELS), y its state at each.

    Args:
        number: Number of the machine.
        seed: Seed of the fleet. All machines of a fleet vibrate alike in a state.
    """
    fleet, rng = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1, number])
    amplitudes = fleet.uniform(0.2, 1.5, (len(STATES), CHANNELS))
    periods = fleet.uniform(4.0, 14.0, (len(STATES), CHANNELS))
    mix = rng.dirichlet(np.full(len(STATES), 0.7))
    lengths = rng.integers(40, 160, READINGS // 40)
    states = np.repeat(rng.choice(len(STATES), len(lengths), p=mix), lengths)[:READINGS]
    angles = 2 * np.pi * np.arange(READINGS)[:, None] / periods[states]
    vibration = amplitudes[states] * np.sin(angles) + rng.normal(0.0, 0.5, (READINGS, CHANNELS))
    mounted = vibration[:, rng.permutation(CHANNELS)] if rng.random() < 0.5 else vibration
    drift = np.cumsum(rng.normal(0.0, 0.01, (READINGS, CHANNELS)), axis=0)
    seen = mounted * rng.uniform(0.5, 2.0, CHANNELS) + rng.uniform(-1.0, 1.0, CHANNELS) + drift
    place = np.arange(READINGS)
    return examples.Examples(
        seen.astype(np.float32), states, (f"machine {number}",), np.zeros(READINGS, np.int64), place, "reading"
    )


def load_data(spec: str, root: Path) -> DeviceData:
    """Return 250 windows of a machine; every fifth block of five is for testing. `root` is not used."""
    match = re.fullmatch(r"machine:([0-9]{1,6})(?:,seed=([0-9]{1,9}))?", spec)
    if match is None:
        raise UsageError(
            f"sensor-fleet: data spec {spec!r} must be machine:NUMBER, for example machine:3 or machine:3,seed=1"
        )
    windows = examples.windows(read_series(int(match[1]), int(match[2] or 0)), WINDOW, WINDOW)
    train, test = splits.block_split(len(windows), _BLOCK, name=spec)
    return windows.device_data(test, train)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of a minibatch."""
    return functional.cross_entropy(outputs, targets)


TASK = Task(
    name="sensor-fleet",
    description="state of a machine from vibration sensors with gains, offsets and drift of their own (generated)",
    build_model=build_model,
    load_data=load_data,
    loss=loss,
    metric=metrics.accuracy,
    batch_size=20,
    learning_rates={"fedavg": 0.1, "fedavg-adam": 0.003},
    demo_data="machine:{index}",
    simulation_data="machine:{index},seed={seed}",
    class_names=STATES,
    input_shape=(CHANNELS, WINDOW),
    ordered=True,
    head=("fc2.*",),
)
