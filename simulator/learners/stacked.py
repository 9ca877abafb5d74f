"""A cohort's LocalUpdates many at a time, in stacked tensors: for a GPU, which one small model alone would leave idle.

The cohort is cut into groups of clients whose batches have the same size. Within a group, those with more steps come first, so
that the clients still at work are always a front part of the stacks. The same groups give the same result, on a GPU as far as
torch's kernels repeat themselves; groups of another size differ from it in rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from device_agent.batches import batch_indices, stream_seed
from device_agent.evaluation import EVALUATION_BATCH
from shared.errors import UpdateRefused, UsageError
from shared.task import Task
from simulator.cohort import Member
from simulator.ground import Ground
from simulator.population import Population
from simulator.stacked_model import StackedModel
from simulator.study import BASELINES, client_id

T = TypeVar("T")

CPU_GROUP = 20
"""Fastest of 1, 5, 20, 50 and 200 for the 2NN: beyond it the gradients of a group no longer fit into the cache."""
DATA_SHARE = 0.4
"""Of a GPU's free memory, what the population's data may take; else they stay where they are and travel batch by batch."""
GROUP_SHARE = 0.5
"""Of the memory that is then free, what a group may take."""
MEASURED_PER_TRAINED = 4
"""Examples in one pass of measuring for one in training: there are no gradients then."""


class StackedCohort:
    """A cohort trained in groups of `group` clients at once; see simulator.cohort.Cohort.

    Without `group`, it is CPU_GROUP on a CPU, and on a GPU as many as fit. Raises UsageError for a device that torch
    does not have, and for a strategy that has a LocalUpdate of its own.
    """

    def __init__(self, task: Task, ground: Ground, device: str, *, group: int | None = None) -> None:
        _require_stackable(ground)
        self._task, self._plan = task, ground.plan
        self._patches, self._travelling = ground.patches, ground.travelling
        self._device = _device(device)
        self._model = StackedModel(task, ground.plan, self._device)
        self._train, self._test = _placed(ground.population, self._device)
        self.group = group or self._fitting(ground.population)
        self._round: dict[str, Tensor] = {}

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model of the round."""
        self._round = {name: value.to(self._device) for name, value in tensors.items()}

    def close(self) -> None:
        """Nothing to end."""

    def _fitting(self, population: Population) -> int:
        """How many clients a group has, where nobody said."""
        free = _free_bytes(self._device)
        if free is None:
            return CPU_GROUP
        most = max(range(population.clients), key=population.num_examples.__getitem__)
        data, batch = population.of(most), slice(self._plan.batch_size)
        return max(1, int(GROUP_SHARE * free / self._model.nbytes_per_client(data.train_x[batch], data.train_y[batch])))

    # ---- user accuracy

    def measure(self, clients: Sequence[int]) -> list[float]:
        """User accuracy of each."""
        counts = self._test.counts
        longest = min(EVALUATION_BATCH, max(counts[client] for client in clients))
        at_once = max(1, self.group * self._plan.batch_size * MEASURED_PER_TRAINED // longest)
        # Shorter test sets are filled up, unless the model would see it.
        alike = counts.__getitem__ if self._model.mixes_examples else lambda client: 0
        ordered = sorted(clients, key=lambda client: -counts[client])
        found: dict[int, float] = {}
        for group in _cut(ordered, alike, min(self.group, at_once)):
            found |= zip(group, self._measure_group(group), strict=True)
        return [found[client] for client in clients]

    def _measure_group(self, group: Sequence[int]) -> list[float]:
        self._load(group, moments=False)
        test, counts = self._test, [self._test.counts[client] for client in group]
        outputs: list[list[Tensor]] = [[] for _ in group]
        for start in range(0, counts[0], EVALUATION_BATCH):
            columns = np.arange(start, min(start + EVALUATION_BATCH, counts[0]))
            rows = [
                test.starts[one] + np.minimum(columns, test.counts[one] - 1)
                for one in group
                if start < test.counts[one]
            ]
            x, _ = test.take(torch.from_numpy(np.stack(rows)))
            for parts, part in zip(outputs, self._model.outputs(x).cpu(), strict=False):
                parts.append(part)
        return [
            float(self._task.metric(torch.cat(parts)[:count], test.targets(client)))
            for client, count, parts in zip(group, counts, outputs, strict=True)
        ]

    # ---- LocalUpdate

    def train(self, members: Sequence[Member]) -> tuple[dict[str, Tensor], list[float]]:
        """The weighted mean of what the members send, and their losses."""
        specs, losses = self._travelling.specs, dict[int, float]()
        mean = {spec.name: torch.zeros(spec.shape, dtype=torch.float64, device=self._device) for spec in specs}
        ordered = sorted(members, key=lambda one: (-self._batch_size(one), -self._steps(one)))
        for group in _cut(ordered, self._batch_size, self.group):
            clients = [one.client for one in group]
            self._load(clients, moments=True)
            losses |= zip(clients, self._train_group(group), strict=True)
            self._store(clients)
            weights = torch.tensor([one.weight for one in group], dtype=torch.float64, device=self._device)
            for name, value in mean.items():
                value += torch.tensordot(weights, self._model.stack(name)[: len(group)].double(), 1)
        return {name: value.cpu() for name, value in mean.items()}, [losses[one.client] for one in members]

    def _batch_size(self, member: Member) -> int:
        return min(self._plan.batch_size, self._train.counts[member.client])

    def _steps(self, member: Member) -> int:
        return self._plan.steps_for(self._train.counts[member.client])

    def _train_group(self, group: Sequence[Member]) -> list[float]:
        """Mean losses over each one's steps, of which the first has the most."""
        steps = [self._steps(one) for one in group]
        losses = torch.zeros((steps[0], len(group)), dtype=torch.float64, device=self._device)
        for step, rows in enumerate(self._batches(group, steps)):
            working = sum(step < count for count in steps)
            losses[step, :working] = self._model.step(*self._train.take(rows[:working]))
        healthy = losses.isfinite().all(0) & self._model.finite(len(group))
        means = [total / count for total, count in zip(losses.sum(0).tolist(), steps, strict=True)]
        if not bool(healthy.all()):
            bad = int(healthy.int().argmin())
            raise UpdateRefused(
                "not_finite",
                f"training client {group[bad].client} diverged, with a loss of {means[bad]}; try a smaller learning rate",
            )
        return means

    def _batches(self, group: Sequence[Member], steps: Sequence[int]) -> Tensor:
        """Which examples make up every batch, (steps, clients, batch); zeros where a client has no more steps."""
        rows = np.zeros((steps[0], len(group), self._batch_size(group[0])), np.int64)
        for place, (one, count) in enumerate(zip(group, steps, strict=True)):
            seed = stream_seed(self._plan.seed, client_id(one.client))
            own = batch_indices(self._train.counts[one.client], self._plan.batch_size, one.first_batch, count, seed)
            rows[:count, place] = self._train.starts[one.client] + np.stack(list(own))
        return self._train.nearby(torch.from_numpy(rows))

    # ---- between the stacks and what lies elsewhere

    def _load(self, clients: Sequence[int], *, moments: bool) -> None:
        """Global values and patches; moments that neither travel nor are kept begin at zero."""
        self._model.reserve(len(clients))
        numbers, patches = torch.tensor(clients), self._patches.values
        for name, stack in self._model.stacks.items():
            if ":" in name and not moments:
                continue
            if name in patches:
                stack[: len(clients)] = patches[name][numbers].to(self._device)
            else:
                stack[: len(clients)] = self._round.get(name, 0)

    def _store(self, clients: Sequence[int]) -> None:
        numbers = torch.tensor(clients)
        for name, block in self._patches.values.items():
            block[numbers] = self._model.stack(name)[: len(clients)].cpu()


class _Examples:
    """The training or the test examples of all clients, on the device that trains or, too many for it, on the CPU."""

    def __init__(self, x: Tensor, y: Tensor, starts: Sequence[int], device: torch.device, *, held: bool) -> None:
        self._blocks = tuple(block.to(device) if held else block for block in (x, y))
        self._y, self._device = y, device
        self.starts = starts
        self.counts = [end - start for start, end in pairwise(starts)]

    def nearby(self, rows: Tensor) -> Tensor:
        """The same, where the examples are."""
        return rows.to(self._blocks[0].device)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the examples `rows`, (clients, batch), on the device."""
        flat = self.nearby(rows.reshape(-1))
        chosen = (block.index_select(0, flat).to(self._device) for block in self._blocks)
        x, y = (values.view(*rows.shape, *values.shape[1:]) for values in chosen)
        return x, y

    def targets(self, client: int) -> Tensor:
        """All of one client's, on the CPU."""
        return self._y[self.starts[client] : self.starts[client] + self.counts[client]]


def _placed(population: Population, device: torch.device) -> tuple[_Examples, _Examples]:
    """Training and test examples."""
    one, free = population, _free_bytes(device)
    nbytes = sum(block.nbytes for block in (one.train_x, one.train_y, one.test_x, one.test_y))
    held = free is None or nbytes < DATA_SHARE * free
    return (
        _Examples(one.train_x, one.train_y, one.train_starts, device, held=held),
        _Examples(one.test_x, one.test_y, one.test_starts, device, held=held),
    )


def _cut(ordered: Sequence[T], alike: Callable[[T], int], size: int) -> Iterator[list[T]]:
    """Groups of at most `size`, in order; what is in one is alike."""
    for _, same in groupby(ordered, alike):
        while group := list(islice(same, size)):
            yield group


def _free_bytes(device: torch.device) -> int | None:
    """Memory that a GPU has left; None for a CPU, which holds everything already."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros((), dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # what torch raises depends on how it was built
        reason = str(error).partition("\n")[0]
        raise UsageError(f"device {name!r} cannot be used here ({reason}); use --device cpu") from error
    return device


def _require_stackable(ground: Ground) -> None:
    strategy = ground.study.strategy
    if strategy in BASELINES and strategy != "independent":
        raise UsageError(f"{strategy} is trained one client at a time only; use --device cpu")
