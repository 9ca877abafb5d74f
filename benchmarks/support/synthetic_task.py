"""Task `synthetic`: small inputs and few examples per client, so that a round of thousands of clients takes seconds.

Its reference is `benchmarks.support.synthetic_task:TASK`. A data spec is `client:INDEX,seed=SEED`: its examples are random
points, labelled by a random linear map that all clients of a seed share, then scaled and shifted by the client's own values,
which private batch norm can learn.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy
from fedpatch.shared.tasks.task import DeviceData, Task

if TYPE_CHECKING:
    from torch import nn

FEATURES = 64
CLASSES = 10
TRAIN_EXAMPLES = 30
TEST_EXAMPLES = 10

_SPEC = re.compile(r"client:(?P<index>\d+),seed=(?P<seed>\d+)")


def build_model(hidden: int = 32) -> nn.Module:
    """64 -> FC -> ReLU -> BN -> FC 10; 2,474 parameters with 32 hidden values."""
    from torch import nn

    return nn.Sequential(
        OrderedDict[str, nn.Module](
            fc1=nn.Linear(FEATURES, hidden), relu1=nn.ReLU(), bn1=nn.BatchNorm1d(hidden), fc2=nn.Linear(hidden, CLASSES)
        )
    )


def load_data(spec: str, root: Path) -> DeviceData:
    """Return points as (n, 64) float32, and their classes. Raises UsageError for another spec; `root` is not used."""
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"synthetic: data spec {spec!r} is not client:INDEX,seed=SEED")
    seed = int(match["seed"])
    truth = np.random.default_rng(seed).standard_normal((FEATURES, CLASSES))
    rng = np.random.default_rng([seed, int(match["index"])])
    points = rng.standard_normal((TRAIN_EXAMPLES + TEST_EXAMPLES, FEATURES))
    labels = (points @ truth).argmax(axis=1)
    seen = (points * rng.uniform(0.5, 2.0) + rng.uniform(-1.0, 1.0)).astype(np.float32)
    return DeviceData(seen[:TRAIN_EXAMPLES], labels[:TRAIN_EXAMPLES], seen[TRAIN_EXAMPLES:], labels[TRAIN_EXAMPLES:])


TASK = Task(
    name="synthetic",
    description="random points with linear classes, 64 features, a scale and a shift of each client's own",
    build_model=build_model,
    load_data=load_data,
    loss=cross_entropy,
    metric=accuracy,
    batch_size=10,
    learning_rates={"fedavg": 0.1},
    demo_data="client:{index},seed=0",
    simulation_data="client:{index},seed={seed}",
    validation_share=0.0,  # the other contestants have no validation data
)

MEDIUM = replace(TASK, name="synthetic-medium", build_model=partial(build_model, 6_500))
LARGE = replace(TASK, name="synthetic-large", build_model=partial(build_model, 184_000))
"""The same with models of 2 MB and of 57 MB in fp32; the latter has 50 MB as fp32+zstd."""
