"""A task small enough to check by hand, with data that can have faults on request."""

from __future__ import annotations

import os
import resource
import signal
import time
import zlib
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.task import DeviceData, Task

FEATURES, HIDDEN, CLASSES = 12, 8, 3


def build_model() -> nn.Module:
    """FC 8 -> tanh -> BN -> FC 3: the paper's 2NN in small.

    Tanh is used since batch norm magnifies rounding errors 300 times if a ReLU is zero for a whole batch.
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            fc1=nn.Linear(FEATURES, HIDDEN), tanh=nn.Tanh(), bn=nn.BatchNorm1d(HIDDEN), fc2=nn.Linear(HIDDEN, CLASSES)
        )
    )


def random_data(name: str, num_examples: int, counts_in_ua: bool = True) -> DeviceData:
    """Two of three labels, distinguished by a device's own rule, so that a personal model is better."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    rule = rng.normal(size=FEATURES)
    x = rng.normal(size=(num_examples + 20, FEATURES)).astype(np.float32) + rng.normal(size=FEATURES).astype(np.float32)
    y = ((x @ rule > np.median(x @ rule)) + rng.integers(2)).astype(np.int64)
    return DeviceData(x[:num_examples], y[:num_examples], x[num_examples:], y[num_examples:], counts_in_ua)


def load_data(spec: str, root: Path) -> DeviceData:
    """`<name>:<number of examples>`; the names `uncounted`, `out-of-range`, `absent` and `bug` do as named."""
    name, _, count = spec.partition(":")
    if name == "absent":
        raise DataError("toy: examples.npz is absent; fetch it first")
    if name == "bug":
        raise KeyError("no such column")
    data = random_data(name, int(count), counts_in_ua=name != "uncounted")
    if name == "out-of-range":
        data.train_y[:] = CLASSES + 5
    return data


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of targets that got the highest output."""
    return float((outputs.argmax(dim=1) == targets).float().mean())


def _slow_chatty_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    time.sleep(0.01)
    os.write(1, b"\x00\x00\x00\x05a task may print what it likes\n")
    return F.cross_entropy(outputs, targets)


def _run_out_of(what: str) -> None:
    """Allocate until memory runs out, at 256 MiB beyond the memory in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**28, hard))
    hoard: list[object] = []
    try:
        while True:
            hoard.append(torch.ones(2**22) if what == "torch" else np.ones(2**22))
    finally:
        hoard.clear()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mishap_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss, once with the mishap that the file $TOY_MISHAP names."""
    order = Path(os.environ["TOY_MISHAP"])
    if order.exists():
        what = order.read_text()
        order.unlink()
        if what == "bug":
            raise KeyError("no such column")
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        _run_out_of(what)
    return F.cross_entropy(outputs, targets)


def _build_tied() -> nn.Module:
    first, second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
    second.weight = first.weight
    return nn.Sequential(first, second, nn.Linear(FEATURES, CLASSES))


TOY = Task(
    "toy", "random numbers", build_model, load_data, F.cross_entropy, accuracy, batch_size=5, validation_share=0.0
)
SLOW = replace(TOY, description="takes its time and prints", loss=_slow_chatty_loss)
MISHAP = replace(TOY, description="runs out of memory", loss=_mishap_loss)
TIED = replace(TOY, description="has one weight under two names", build_model=_build_tied)

torch.set_num_threads(1)
