"""The devices' task: a model of three small tensors, one of them private, and a rule instead of training.

The rule has the inputs of a real training: the global model, the private patch before, the device, the round. They
determine the result of a device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.messages import TrainPlan

SCHEMA = Schema(
    (
        TensorSpec("body.weight", (12, 5), "float32", "weight"),
        TensorSpec("body.steps", (), "int64", "buffer"),
        TensorSpec("norm.weight", (4,), "float32", "affine"),
    )
)
POLICY = parse_policy("affine")
PRIVATE = "norm.weight"
PUBLIC = POLICY.public(SCHEMA)
PLAN = TrainPlan("sgd", 0.1, 20)
INITIAL: Mapping[str, Array] = {
    "body.weight": np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32),
    "body.steps": np.asarray(0, np.int64),
}
FIRST_PATCH: Mapping[str, Array] = {PRIVATE: np.ones(4, np.float32)}


def examples(device: str) -> int:
    """Return a device's number of examples; all differ, so that sums over different devices are seldom equal."""
    return 7 + (8 << int(device.rpartition("-")[2]))


def learned(
    model: Mapping[str, Array], patch: Mapping[str, Array], device: str, number: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the update and the patch that a device makes from a global model and its patch in round `number`."""
    seed = hashlib.sha256(f"{device}/{number}".encode()).digest()[:8]
    random = np.random.default_rng(int.from_bytes(seed, "big"))
    private = patch[PRIVATE]
    weight = model["body.weight"]
    change = np.asarray(random.normal(size=weight.shape), np.float32)
    update: dict[str, Array] = {
        "body.weight": np.asarray(weight * np.float32(0.9) + change * private.mean(), np.float32),
        "body.steps": np.asarray(model["body.steps"] + number * len(device), np.int64),
    }
    step = np.asarray(random.normal(size=private.shape), np.float32)
    return update, {PRIVATE: np.asarray(private * np.float32(0.9) + step + weight.mean(), np.float32)}


def prepared() -> Prepared:
    """Return FedAvg of this model, under the name of an installed task."""
    strategy = find_strategy("fedavg")
    return Prepared(
        task=Task("digits", "a rule", build_model=_unused, load_data=_unused, loss=_unused, metric=_unused),
        strategy=strategy,
        policy=POLICY,
        plan=PLAN,
        schema=SCHEMA,
        public=PUBLIC,
        travelling=strategy.travelling(PUBLIC),
        private_names=POLICY.private_names(SCHEMA),
        initial=strategy.init(dict(INITIAL), PUBLIC),
    )


def _unused(*_: Any) -> NoReturn:
    raise AssertionError("no model is built here")
