"""A learner for norm bounds: it writes each update to disk, and the coordinator's own code bounds and averages them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.aggregate_result import AggregateResult
from fedpatch.coordinator.aggregation.limit_syntax import Limits
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.shared.tensors.arrays import Array, Schema
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.simulator.learners.protocols import Learner
from fedpatch.simulator.learners.single_updates import SingleUpdates
from fedpatch.simulator.spec.study import client_id

_HELD_BYTES = 512 * 2**20
"""The updates of a round are read only once if they fit into this memory: opening small files is slow."""


@dataclass(frozen=True)
class SpooledRound:
    """The updates of a round on disk, which may be replaced before they are aggregated.

    Attributes:
        folder: The folder of the updates.
        clients: The clients that sent an update.
        number: Number of the round.
        base: The global model as clients read it.
        trained: Names of the trained tensors.
    """

    folder: Path
    clients: Sequence[int]
    number: int
    base: Mapping[str, Array]
    trained: Sequence[str]

    def read(self, client: int) -> dict[str, Array]:
        """Return the update of a client."""
        return read_spooled(self.folder, client)

    def write(self, client: int, arrays: Mapping[str, Array]) -> None:
        """Replace the update of a client."""
        write_spooled(self.folder, client, arrays)


ChangeRound = Callable[[SpooledRound], None]


class SpooledLearner(SingleUpdates):
    """Lets another learner train, and writes each update to a file instead of adding it up; see Learner."""

    def __init__(self, learner: Learner, travelling: Schema, folder: Path) -> None:
        super().__init__(learner, travelling)
        self._folder = folder

    def train(self, client: int, first_batch: int, weight: float) -> float:
        """Do LocalUpdate; keep the patch, write the rest. Return the mean loss over the steps."""
        loss, arrays = self._update_of(client, first_batch)
        write_spooled(self._folder, client, arrays)
        return loss

    def result(self) -> Tensor:
        """Return an empty tensor: no update is added up."""
        return torch.zeros(0, dtype=torch.float64)

    def tensors_of(self, total: Tensor) -> dict[str, Tensor]:
        """Return an empty dict."""
        return {}


def fold_spooled(
    folder: Path,
    clients: Sequence[int],
    num_examples: Sequence[int],
    *,
    schema: Schema,
    state: ServerState,
    base: Mapping[str, Array],
    limits: Limits,
    plan: TrainPlan,
) -> AggregateResult:
    """Return the mean of the updates of these clients in `folder`, by the coordinator's code, and delete them.

    `base` is the global model as clients read it, `num_examples` has the training examples of all clients.
    """
    numbers = {client_id(client): client for client in clients}

    def read(device: str) -> dict[str, Array]:
        return read_spooled(folder, numbers[device])

    if sum(array.nbytes for array in base.values()) * len(clients) <= _HELD_BYTES:
        read = cache(read)
    counted = {device: num_examples[client] for device, client in numbers.items()}
    folded = aggregate(RoundUpdates(counted, read), RoundBase(schema, base, plan, state.references), limits)
    remove_spooled(folder, clients)
    return folded


def write_spooled(folder: Path, client: int, arrays: Mapping[str, Array]) -> None:
    """Write a client's update; an existing one is replaced."""
    with file_of_update(folder, client).open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes the names for its own options


def read_spooled(folder: Path, client: int) -> dict[str, Array]:
    """Return the update that `write_spooled` wrote."""
    with np.load(file_of_update(folder, client), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def remove_spooled(folder: Path, clients: Sequence[int]) -> None:
    """Delete the updates of these clients."""
    for client in clients:
        file_of_update(folder, client).unlink()


def file_of_update(folder: Path, client: int) -> Path:
    """Return the path of the file with a client's update."""
    return folder / f"{client}.npz"
