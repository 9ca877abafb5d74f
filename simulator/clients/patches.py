"""The private patch of every client between rounds, with the optimizer moments of its trained tensors.

One block per tensor, clients along the first axis, in memory that worker processes share. So 10,000 clients with private
batch norm take 10,000 times a few kilobytes, and one model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpatch.shared.errors import SchemaMismatch
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, listing


class Patches:
    """`values[name]` has shape (clients, ...); a client that never trained has the initial values, and moments of zero."""

    def __init__(self, schema: Schema, initial: Tensors, clients: int) -> None:
        self.values: dict[str, Tensor] = {}
        for spec in schema.specs:
            one = initial.get(spec.name)
            start = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) if one is None else _tensor(one)
            # Pages that are never written take no memory: zeros are free until a client trains.
            block = shared_zeros((clients, *spec.shape), start.dtype)
            if bool(start.any()):
                block.copy_(start)
            self.values[spec.name] = block

    @property
    def private_names(self) -> frozenset[str]:
        """Names of the model's own tensors in the patch, without their moments."""
        return frozenset(name for name in self.values if ":" not in name)

    def of(self, client: int) -> dict[str, Array]:
        """Copies of the patch of one client, by name."""
        return {name: block[client].numpy().copy() for name, block in self.values.items()}

    def keep(self, client: int, tensors: Mapping[str, Array]) -> None:
        """Store the patch of one client from a mapping that has its names."""
        for name, block in self.values.items():
            block[client] = _tensor(tensors[name])

    @property
    def nbytes_per_client(self) -> int:
        """Bytes of one client."""
        return sum(block[0].numel() * block.element_size() for block in self.values.values())


def check_blocks(what: str, values: Mapping[str, Tensor], blocks: Tensors) -> None:
    """Raise SchemaMismatch unless `blocks` have the names and shapes of `values`: the same clients and model."""
    ours = {name: tuple(block.shape) for name, block in values.items()}
    theirs = {name: block.shape for name, block in blocks.items()}
    if different := [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]:
        raise SchemaMismatch(f"{what} differ in {listing(different)}")


def shared_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros in memory that can be shared with other processes."""
    return shared(torch.zeros(tuple(shape), dtype=dtype))


def shared(tensor: Tensor) -> Tensor:
    """Move a tensor into memory that can be shared with other processes, and return it."""
    moved: Tensor = tensor.share_memory_()  # type: ignore[no-untyped-call]
    return moved


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, order="C"))
