"""Input of a peer's program: the folder that benchmarks.support.work.write_work filled; stdin and stdout.

The program prints `ready` when it has warmed up. Then, for each line on stdin, it runs one round and answers with the round's
mean training loss as JSON (null if the simulator has none). It ends when stdin ends.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class PeerWork:
    """Training examples of all clients, one client after another, and the terms of their steps."""

    train_x: Tensor
    train_y: Tensor
    starts: list[int]
    batch_size: int
    steps: list[int]
    learning_rate: float
    initial: dict[str, Tensor]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.steps)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's inputs and targets."""
        part = slice(self.starts[client], self.starts[client + 1])
        return self.train_x[part], self.train_y[part]

    def build_model(self) -> nn.Sequential:
        """Return the 2NN with any widths: FC -> ReLU -> BN -> FC -> ReLU -> FC, with the initial values."""
        widths = [self.initial[f"fc{number}.weight"].shape for number in (1, 2, 3)]
        fc1, fc2, fc3 = (nn.Linear(inputs, outputs) for outputs, inputs in widths)
        model = nn.Sequential(
            OrderedDict[str, nn.Module](
                fc1=fc1, relu1=nn.ReLU(), bn1=nn.BatchNorm1d(fc1.out_features), fc2=fc2, relu2=nn.ReLU(), fc3=fc3
            )
        )
        model.load_state_dict(self.initial)
        return model


def read_work(folder: Path) -> PeerWork:
    """Read the work of a folder. The data are mapped, so processes with the same folder share them."""
    terms = json.loads((folder / "terms.json").read_text("utf-8"))
    with np.load(folder / "initial.npz", allow_pickle=False) as arrays:
        initial = {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}
    # Mode "c": torch requires writable memory; nothing is written.
    x, y = (torch.from_numpy(np.load(folder / f"train_{part}.npy", mmap_mode="c")) for part in "xy")
    return PeerWork(x, y, **terms, initial=initial)


def say(answer: Any) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def wait_for_go() -> bool:
    """Wait for a line; return False at the end of stdin."""
    return bool(sys.stdin.readline())
