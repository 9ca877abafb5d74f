"""A small model with a frozen base, LoRA matrices and a head, and its tasks: with the base from build_model or a file."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedpatch.shared.tasks.downloads import DataFile
from fedpatch.shared.tensors.arrays import Array
from tests.system.oracle_task import CLASSES, FEATURES
from tests.system.oracle_task import TASK as ORACLE

HIDDEN, RANK = 10, 2
BASE = ("base.bias", "base.weight")
SEED, SEED_VARIABLE = 3, "FROZEN_BASE_SEED"
"""Seed of the base, and the environment variable that gives a process another seed."""
URL = "FROZEN_BASE_URL"
"""Environment variable with the URL of the file of the base."""


class FrozenBase(nn.Module):
    """A frozen layer with LoRA of rank 2, two kinds of normalisation, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, HIDDEN)
        self.lora_A = nn.Parameter(0.3 * torch.randn(RANK, FEATURES))
        self.lora_B = nn.Parameter(0.3 * torch.randn(HIDDEN, RANK))
        self.norm, self.bn = nn.LayerNorm(HIDDEN), nn.BatchNorm1d(HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.base(x) + x @ self.lora_A.T @ self.lora_B.T)
        outputs: Tensor = self.head(self.bn(torch.tanh(x)))
        return outputs


def base_values(seed: int = SEED) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"base.weight": (HIDDEN, FEATURES), "base.bias": (HIDDEN,)}
    return {name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def build_model(seed: int = int(os.environ.get(SEED_VARIABLE, SEED))) -> nn.Module:
    model = FrozenBase()
    model.base.requires_grad_(requires_grad=False)
    model.base.load_state_dict(
        {name.removeprefix("base."): torch.from_numpy(value) for name, value in base_values(seed).items()}
    )
    return model


def build_other() -> nn.Module:
    """Return a model with another base."""
    return build_model(SEED + 1)


def build_without_base() -> nn.Module:
    """Return a model without the values of the base, which come from a file."""
    model = build_model()
    nn.init.zeros_(model.get_parameter("base.weight"))
    return model


def base_file() -> bytes:
    """Return the bytes of the file of the base; they are the same on each call."""
    file = io.BytesIO()
    np.savez(file, **base_values())  # type: ignore[arg-type]  # its second argument is no array
    return file.getvalue()


TASK = replace(
    ORACLE,
    name="frozen",
    build_model=build_model,
    demo_data="n=25,test=9,seed={index}",
    head=("head.*",),
    frozen=True,
    input_shape=(FEATURES,),
)
OTHER = replace(TASK, build_model=build_other)
"""The same task with another base."""
FILE = DataFile("frozen", "base.npz", hashlib.sha256(base_file()).hexdigest(), tuple(os.environ.get(URL, "").split()))
FROM_FILE = replace(TASK, build_model=build_without_base, frozen_file=FILE)
REFERENCE = "tests.support.frozen_tasks:"
