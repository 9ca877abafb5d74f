"""A cohort's LocalUpdates many at a time, in stacked tensors: for a GPU, which one small model alone would leave idle.

The cohort is cut into groups of clients whose batches have the same size. Within a group, those with more steps come first, so
that the clients still at work are always a front part of the stacks. The same groups give the same result, on a GPU as far as
torch's kernels repeat themselves; groups of another size differ from it in rounding only.

One model for many clients: every tensor has a client axis in front, and a step moves all clients by one batch each.

The forward pass is the task's own module, mapped over clients (torch.func). Clients do not meet in it, so the gradient of
the sum of their losses is the gradient of each; autograd then works on whole stacks, and nothing of it is mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import groupby, islice, pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedpatch.device_agent.training.batches import batch_indices, stream_seed
from fedpatch.device_agent.training.evaluation import EVALUATION_BATCH
from fedpatch.shared.errors import DataError, UpdateRefused, UsageError
from fedpatch.shared.tasks.frozen_values import frozen_in, new_model
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.arrays import MOMENTS, TRAINABLE, moment_name
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.simulator.clients.population import Population
from fedpatch.simulator.kernels.convolutions import use_products
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.protocols import CohortMember
from fedpatch.simulator.spec.study import BASELINES, client_id

Values = dict[str, Tensor]


class StackedModel:
    """`stacks[name]` has shape (room, ...): a place for each of `room` clients, of which the first `count` are used at a time.

    `name` is that of a tensor in the model's state, or of a moment of a trained one (Adam only). A tensor that the model has
    under several names has one stack; `stack` finds it by any of them.
    """

    def __init__(self, task: Task, plan: TrainPlan, device: torch.device) -> None:
        self._task, self._plan, self._device = task, plan, device
        with torch.random.fork_rng(devices=[]):
            self._module = use_products(new_model(task)).to(device)
        frozen = frozen_in(self._module).names  # the clients have them in common, in the module
        state = {name: value for name, value in self._module.state_dict(keep_vars=True).items() if name not in frozen}
        first = {id(value): name for name, value in reversed(state.items())}
        self._first_name = {name: first[id(value)] for name, value in state.items()}
        firsts = set(first.values())
        self._shapes = {name: (value.shape, value.dtype) for name, value in state.items() if name in firsts}
        schema = schema_of(self._module)
        self.trained = [name for name in self._shapes if schema.spec(name).role in TRAINABLE]
        self._untrained = [name for name in self._shapes if name not in self.trained]
        self._adam = plan.client_optimizer == "adam"
        self.stacks: Values = {}
        self._reserve(0)

    def reserve(self, room: int) -> None:
        """Make room for that many clients; what the stacks held is lost where it grows."""
        if room > self._room:
            self.stacks = {}  # the old ones go before the new ones come
            with _task_errors(self._task):
                self._reserve(room)

    def _reserve(self, room: int) -> None:
        make = partial(torch.zeros, device=self._device)
        self._room = room
        self.stacks = {name: make((room, *shape), dtype=dtype) for name, (shape, dtype) in self._shapes.items()}
        if not self._adam:
            return
        # One block: the coefficients of all tensors are then worked out at once.
        self._step_counts = make((len(self.trained), room), dtype=torch.float32)
        for name, step_count in zip(self.trained, self._step_counts, strict=True):
            exp_avg, exp_avg_sq = (torch.zeros_like(self.stacks[name]) for _ in range(2))
            for moment, stack in zip(MOMENTS, (exp_avg, exp_avg_sq, step_count), strict=True):
                self.stacks[moment_name(name, moment)] = stack

    def stack(self, name: str) -> Tensor:
        """The stack of a tensor of the model, or of a moment, by any name that it has."""
        base, colon, moment = name.partition(":")
        return self.stacks[f"{self._first_name[base]}{colon}{moment}"]

    def finite(self, count: int) -> Tensor:
        """Return which of the first `count` clients have only finite values, moments among them, (clients,)."""
        floats = [
            stack[:count].reshape(count, stack[0].numel())
            for stack in self.stacks.values()
            if stack.is_floating_point()
        ]
        return torch.stack([values.isfinite().all(1) for values in floats]).all(0)

    @property
    def mixes_examples(self) -> bool:
        """True if an example's outputs depend on the others of its batch, in evaluation mode too."""
        return any(isinstance(part, _BatchNorm) and part.running_mean is None for part in self._module.modules())

    # ---- passes

    def outputs(self, x: Tensor) -> Tensor:
        """In evaluation mode: (clients, examples, ...) to outputs of the same axes."""
        self._module.eval()
        with torch.no_grad(), _task_errors(self._task), _exact():
            outputs: Tensor = vmap(self._forward)(self._values(len(x)), x)
        return outputs

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Train the first `len(x)` clients by one batch each, (clients, examples, ...); returns their losses, (clients,)."""
        count = len(x)
        self._module.train()
        values = self._values(count)
        leaves = {name: values[name].detach().requires_grad_() for name in self.trained}
        with _task_errors(self._task), _exact():
            losses, after = vmap(self._loss)(values | leaves, x, y)
            # None for what the loss does not depend on: no optimizer steps that.
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        with torch.no_grad():
            for name, value in after.items():
                if value.data_ptr() != values[name].data_ptr():  # a module that gives its buffer a new tensor
                    values[name].copy_(value)
            self._optimize(values, grads, count)
        return losses.detach()

    def _values(self, count: int) -> Values:
        return {name: self.stacks[name][:count] for name in self._shapes}

    def _forward(self, values: Values, x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(
            self._module, values, (x,), tie_weights=len(self._shapes) < len(self._first_name)
        )
        return outputs

    def _loss(self, values: Values, x: Tensor, y: Tensor) -> tuple[Tensor, Values]:
        """One client's loss, and what the forward pass left in the tensors that are not trained."""
        loss = self._task.loss(self._forward(values, x), y)
        return loss, {name: values[name] for name in self._untrained}

    # ---- optimizers, as torch.optim has them

    def _optimize(self, values: Values, grads: Sequence[Tensor | None], count: int) -> None:
        rows = enumerate(zip(self.trained, grads, strict=True))
        moved = [(row, values[name], grad) for row, (name, grad) in rows if grad is not None]
        if not self._adam:
            for _, value, grad in moved:
                value.add_(grad, alpha=-self._plan.learning_rate)
            return
        for row, _, _ in moved:
            self._step_counts[row, :count] += 1
        sizes, roots = self._corrections(count)
        for row, value, grad in moved:
            self._adam_step(row, value, grad, _along(sizes[row], value), _along(roots[row], value))

    def _corrections(self, count: int) -> tuple[Tensor, Tensor]:
        """Learning rate over (1 - beta_1^t), and the root of 1 - beta_2^t, by trained tensor and client: each has its own t."""
        plan, steps = self._plan, self._step_counts[:, :count].double()
        return plan.learning_rate / (1 - plan.beta_1**steps), (1 - plan.beta_2**steps).sqrt_()

    def _adam_step(self, row: int, value: Tensor, grad: Tensor, size: Tensor, root: Tensor) -> None:
        plan, name, count = self._plan, self.trained[row], len(value)
        first = self.stacks[moment_name(name, "exp_avg")][:count].lerp_(grad, 1 - plan.beta_1)
        second = self.stacks[moment_name(name, "exp_avg_sq")][:count]
        second.mul_(plan.beta_2).addcmul_(grad, grad, value=1 - plan.beta_2)
        value.sub_((first * size).div_(second.sqrt().div_(root).add_(plan.epsilon)))

    # ---- what it costs

    def nbytes_per_client(self, x: Tensor, y: Tensor) -> int:
        """Bytes that one client takes in `step` with one batch `x`, `y`: a bound worked out on the CPU, not a measurement."""
        sizes: dict[str, int] = {name: shape.numel() * dtype.itemsize for name, (shape, dtype) in self._shapes.items()}
        trained = sum(sizes[name] for name in self.trained)
        copies = 4 if self._adam else 2  # gradients, moments, and what an update needs on the way
        as_float64 = 2 * 8 * max(shape.numel() for shape, _ in self._shapes.values())
        # What autograd keeps is there twice while the gradients by it are made.
        total: int = (
            sum(sizes.values()) + copies * trained + as_float64 + 2 * self._kept_bytes(x, y) + x.nbytes + y.nbytes
        )
        return total

    def _kept_bytes(self, x: Tensor, y: Tensor) -> int:
        """Bytes that autograd keeps for the backward pass of one client."""
        kept: dict[int, int] = {}

        def keep(value: Tensor) -> Tensor:
            kept[value.data_ptr()] = value.nbytes
            return value

        with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            loss = self._task.loss(use_products(self._task.build_model())(x), y)
            del loss
        return sum(kept.values())


def _along(per_client: Tensor, value: Tensor) -> Tensor:
    """(clients,) so that it multiplies (clients, ...)."""
    return per_client.to(value.dtype).view(-1, *[1] * (value.dim() - 1))


@contextmanager
def _task_errors(task: Task) -> Iterator[None]:
    """Raise an error with the remedy where torch cannot compute a model or a batch in stacks."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise UsageError(
            f"task {task.name!r}: its clients do not fit into the device's memory in groups of this size; use --device cpu"
        ) from error
    except (RuntimeError, ValueError) as error:
        if "more than 1 value per channel" in str(error):
            raise DataError(
                f"task {task.name!r}: batch norm cannot learn from a batch of one example; use a batch size and clients' "
                "data of at least 2"
            ) from error
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"task {task.name!r}: its model cannot be computed for many clients at once ({reason}); use --device cpu"
        ) from error


def _exact() -> AbstractContextManager[None]:
    """Convolutions on a GPU with all the digits of a CPU, and the same ones each time; elsewhere without effect."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    return flags


T = TypeVar("T")

CPU_GROUP = 20
"""Fastest of 1, 5, 20, 50 and 200 for the 2NN: beyond it the gradients of a group no longer fit into the cache."""
DATA_SHARE = 0.4
"""Share of a GPU's free memory that the population's data may take; else they are copied batch by batch."""
GROUP_SHARE = 0.5
"""Share of the memory that is then free that a group may take."""
MEASURED_PER_TRAINED = 4
"""Examples in one pass of measuring for one in training: there are no gradients then."""


class StackedCohort:
    """A cohort trained in groups of `group` clients at once; see simulator.learners.protocols.Cohort.

    Without `group`, it is CPU_GROUP on a CPU, and on a GPU as many as fit. Raises UsageError for a device that torch
    does not have, and for a strategy that has a LocalUpdate of its own.
    """

    def __init__(self, task: Task, context: LearnerContext, device: str, *, group: int | None = None) -> None:
        _require_stackable(context)
        self._task, self._plan = task, context.plan
        self._patches, self._travelling = context.patches, context.travelling
        self._device = _device(device)
        self._model = StackedModel(task, context.plan, self._device)
        self._train, self._test = _placed(context.population, self._device)
        self.group = group or self._fitting(context.population)
        self._round: dict[str, Tensor] = {}

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model of the round."""
        self._round = {name: value.to(self._device) for name, value in tensors.items()}

    def close(self) -> None:
        """Nothing to end."""

    def _fitting(self, population: Population) -> int:
        """Default number of clients in a group."""
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

    def train(self, members: Sequence[CohortMember]) -> tuple[dict[str, Tensor], list[float]]:
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

    def _batch_size(self, member: CohortMember) -> int:
        return min(self._plan.batch_size, self._train.counts[member.client])

    def _steps(self, member: CohortMember) -> int:
        return self._plan.steps_for(self._train.counts[member.client])

    def _train_group(self, group: Sequence[CohortMember]) -> list[float]:
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

    def _batches(self, group: Sequence[CohortMember], steps: Sequence[int]) -> Tensor:
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


def _require_stackable(context: LearnerContext) -> None:
    strategy = context.study.strategy
    if strategy in BASELINES and strategy != "independent":
        raise UsageError(f"{strategy} is trained one client at a time only; use --device cpu")
