"""The data of every client of a study, in four blocks that worker processes share without copying.

A client is a device; its data spec is the template, filled in with its number. In each block its examples follow those of
the previous client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedpatch.shared.app.formatting import size
from fedpatch.shared.errors import DataError, FedpatchError, UsageError
from fedpatch.shared.task_checks.data_checks import checked, load_checked
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import floating_dtype
from fedpatch.shared.tasks.validation_split import split_for
from fedpatch.simulator.clients.patches import shared
from fedpatch.simulator.spec.data_template import data_specs

_MANY = 10_000
"""From so many clients on, the first client's data are loaded before the other specs are written: a task that has fewer
shares then raises its error at once."""


@dataclass(frozen=True)
class ClientData:
    """One client's examples: read-only views of the population's blocks."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Population:
    """The data of all clients, numbered from 0.

    The blocks have the examples of all clients along the first axis, in shared memory: a process that
    `torch.multiprocessing` starts maps them and does not copy them. Client i has the training examples from
    `train_starts[i]` up to `train_starts[i + 1]`, the test examples likewise. `counts_in_ua` as in DeviceData.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    train_starts: list[int]
    test_starts: list[int]
    counts_in_ua: list[bool]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.counts_in_ua)

    @cached_property
    def num_examples(self) -> list[int]:
        """Training examples of each client."""
        return [end - start for start, end in zip(self.train_starts, self.train_starts[1:], strict=False)]

    def of(self, client: int) -> ClientData:
        """Return the examples of client 0 to `clients` - 1, without a copy."""
        train = slice(self.train_starts[client], self.train_starts[client + 1])
        test = slice(self.test_starts[client], self.test_starts[client + 1])
        return ClientData(self.train_x[train], self.train_y[train], self.test_x[test], self.test_y[test])


def load_population(
    task: Task,
    template: str,
    clients: int,
    seed: int,
    root: Path,
    try_out: Callable[[DeviceData], None] = lambda data: None,
) -> Population:
    """Load the data of all clients.

    As on a device, a validation part is split off the training examples if the task makes none
    (shared.tasks.validation_split); a simulation does not use it. The bundled tasks have none unless the template asks for
    it. Loading takes at most twice the memory of the blocks, besides the memory in which the task reads its files.

    Args:
        template: Data spec of each client, with {index}, {count} and {seed} (simulator.spec.data_template).
        root: Folder for data files.
        try_out: Called with the first client's data before the split, so rows are numbered as by the task.

    Returns:
        The data, in shared memory.

    Raises:
        UsageError: The template is not valid, or there are no clients.
        DataError: Data are absent, damaged or too few, differ between clients in shape or dtype, or do not fit into shared
            memory.
    """
    if clients < 1:
        raise UsageError(f"a population of {clients} clients is none; take at least 1")
    if clients >= _MANY:
        _load_one(task, data_specs(template, clients, seed, most=1)[0], root)
    loaded = _load(task, data_specs(template, clients, seed), root)
    try_out(loaded[0])
    for client, data in enumerate(loaded):
        loaded[client] = split_for(task, data)  # in place: frees the data before the split
    return _joined(loaded)


def _load(task: Task, specs: Sequence[str], root: Path) -> list[DeviceData]:
    if task.load_many is None:
        return [_load_one(task, spec, root, client) for client, spec in enumerate(specs)]
    with _data_errors(task, f"{len(specs)} data specs, {specs[0]!r} the first,", root):
        loaded = task.load_many(specs, root)
    if len(loaded) != len(specs):
        raise DataError(
            f"task {task.name!r}: load_many gave the data of {len(loaded)} devices for {len(specs)} specs; "
            "it must give one for each, in their order"
        )
    return [
        checked(task, data, f"client {client}", lambda: floating_dtype(task)).data for client, data in enumerate(loaded)
    ]


def _load_one(task: Task, spec: str, root: Path, client: int = 0) -> DeviceData:
    with _data_errors(task, f"data {spec!r}", root):
        return load_checked(task, spec, root, f"client {client}", lambda: floating_dtype(task)).data


@contextmanager
def _data_errors(task: Task, what: str, root: Path) -> Iterator[None]:
    """Turn any exception of the user's task into a DataError that names the place of the data."""
    try:
        yield
    except FedpatchError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"task {task.name!r} failed with {what} in the folder {root}, which --data-root or FEDPATCH_DATA can name: {reason}"
        ) from error


def _joined(devices: Sequence[DeviceData]) -> Population:
    return Population(
        _block("training inputs", [device.train_x for device in devices]),
        _block("training targets", [device.train_y for device in devices]),
        _block("test inputs", [device.test_x for device in devices]),
        _block("test targets", [device.test_y for device in devices]),
        _starts([len(device.train_x) for device in devices]),
        _starts([len(device.test_x) for device in devices]),
        [device.counts_in_ua for device in devices],
    )


def _starts(lengths: Sequence[int]) -> list[int]:
    return list(accumulate(lengths, initial=0))


def _block(what: str, parts: Sequence[np.ndarray]) -> Tensor:
    """Return `parts`, one after another, as one tensor in shared memory."""
    parts = [np.asarray(part) for part in parts]
    first = parts[0]
    for client, part in enumerate(parts):
        if (part.shape[1:], part.dtype) != (first.shape[1:], first.dtype):
            raise DataError(
                f"client {client}: its {what} are {_kind(part)} each, those of client 0 {_kind(first)}; "
                "all clients of a simulation need one shape and dtype"
            )
    block = _shared(what, (sum(len(part) for part in parts), *first.shape[1:]), first.dtype)
    np.concatenate(parts, out=block.numpy())
    return block


def _kind(part: np.ndarray) -> str:
    return f"{part.dtype} of shape {part.shape[1:]}"


def _shared(what: str, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    try:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError) as error:
        raise DataError(f"client 0: its {what} are {dtype}, which no tensor can hold ({error})") from error
    try:
        return shared(torch.empty(shape, dtype=kind))
    except RuntimeError as error:  # torch has no special error for missing memory
        raise DataError(
            f"{what} of all clients, {size(prod(shape) * dtype.itemsize)}, do not fit into shared memory ({error}); "
            "take fewer clients, or make /dev/shm larger (docker: --shm-size)"
        ) from error
