"""LocalUpdates of many clients at a time, in stacked tensors: for a GPU, which one small model alone would leave idle.

The cohort is cut into groups of clients whose batches have the same size. Within a group, clients with more steps come first:
the clients that still train are always the first rows of the stacks. The same groups give the same result, on a GPU if torch's
kernels are deterministic; groups of another size differ only in rounding.

One model for many clients: every tensor has a client axis in front, and a step trains all clients by one batch each.

The forward pass is the task's own module, mapped over clients (torch.func). Clients are independent in it, so the gradient of
the sum of their losses has the gradient of each; autograd then works on whole stacks without mapping.
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
from fedpatch.device_agent.training.evaluation import EVALUATION_BATCH, evaluation_batches
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
    """`stacks[name]` has shape (room, ...): a place for each of `room` clients; the first `count` places are used at a time.

    `name` is a tensor in the model's state, or a moment of a trained tensor (Adam only). A tensor with several names in the
    model has one stack; `stack` finds it by any of them.
    """

    def __init__(self, task: Task, plan: TrainPlan, device: torch.device) -> None:
        self._task, self._plan, self._device = task, plan, device
        with torch.random.fork_rng(devices=[]):
            self._module = use_products(new_model(task)).to(device)
        frozen = frozen_in(self._module).names  # all clients share these values, in the module
        state = {name: value for name, value in self._module.state_dict(keep_vars=True).items() if name not in frozen}
        first = {id(value): name for name, value in reversed(state.items())}
        self._first_name = {name: first[id(value)] for name, value in state.items()}
        firsts = set(first.values())
        self._shapes = {name: (value.shape, value.dtype) for name, value in state.items() if name in firsts}
        schema = schema_of(self._module)
        self.trained = [name for name in self._shapes if schema.spec(name).role in TRAINABLE]
        self._untrained = [name for name in self._shapes if name not in self.trained]
        # Such as the mask of causal attention.
        self._not_finite = {
            name: ~state[name].detach().isfinite().reshape(-1)
            for name in self._untrained
            if state[name].is_floating_point() and not state[name].isfinite().all()
        }
        self._adam = plan.client_optimizer == "adam"
        self.stacks: Values = {}
        self._reserve(0)

    def reserve(self, room: int) -> None:
        """Make room for `room` clients; when the stacks grow, their content is lost."""
        if room > self._room:
            self.stacks = {}  # frees the old stacks before the new ones are allocated
            with _task_errors(self._task):
                self._reserve(room)

    def _reserve(self, room: int) -> None:
        make = partial(torch.zeros, device=self._device)
        self._room = room
        self.stacks = {name: make((room, *shape), dtype=dtype) for name, (shape, dtype) in self._shapes.items()}
        if not self._adam:
            return
        # In one block the coefficients of all tensors are computed at once.
        self._step_counts = make((len(self.trained), room), dtype=torch.float32)
        for name, step_count in zip(self.trained, self._step_counts, strict=True):
            exp_avg, exp_avg_sq = (torch.zeros_like(self.stacks[name]) for _ in range(2))
            for moment, stack in zip(MOMENTS, (exp_avg, exp_avg_sq, step_count), strict=True):
                self.stacks[moment_name(name, moment)] = stack

    def stack(self, name: str) -> Tensor:
        """Return the stack of a tensor of the model, or of a moment, by any of its names."""
        base, colon, moment = name.partition(":")
        return self.stacks[f"{self._first_name[base]}{colon}{moment}"]

    def finite(self, count: int) -> Tensor:
        """Return which of the first `count` clients have only finite values and moments, (clients,).

        A value that is not trained need not be finite where the new model's is not.
        """
        floats = {
            name: stack[:count].reshape(count, stack[0].numel()).isfinite()
            for name, stack in self.stacks.items()
            if stack.is_floating_point()
        }
        floats |= {name: floats[name] | places for name, places in self._not_finite.items()}
        return torch.stack([values.all(1) for values in floats.values()]).all(0)

    @property
    def mixes_examples(self) -> bool:
        """True if an example's outputs depend on the other examples of its batch, in evaluation mode too."""
        return any(isinstance(part, _BatchNorm) and part.running_mean is None for part in self._module.modules())

    # ---- passes

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs in evaluation mode: (clients, examples, ...) to the same axes."""
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
            # None for a tensor that the loss does not depend on: optimizers skip it.
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        with torch.no_grad():
            for name, value in after.items():
                if value.data_ptr() != values[name].data_ptr():  # the module has replaced its buffer by a new tensor
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
        """Return one client's loss, and the untrained tensors after the forward pass."""
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
        """Return learning rate / (1 - beta_1^t) and the root of 1 - beta_2^t, for the t of each trained tensor and client."""
        plan, steps = self._plan, self._step_counts[:, :count].double()
        return plan.learning_rate / (1 - plan.beta_1**steps), (1 - plan.beta_2**steps).sqrt_()

    def _adam_step(self, row: int, value: Tensor, grad: Tensor, size: Tensor, root: Tensor) -> None:
        plan, name, count = self._plan, self.trained[row], len(value)
        first = self.stacks[moment_name(name, "exp_avg")][:count].lerp_(grad, 1 - plan.beta_1)
        second = self.stacks[moment_name(name, "exp_avg_sq")][:count]
        second.mul_(plan.beta_2).addcmul_(grad, grad, value=1 - plan.beta_2)
        value.sub_((first * size).div_(second.sqrt().div_(root).add_(plan.epsilon)))

    # ---- memory

    def nbytes_per_client(self, x: Tensor, y: Tensor) -> int:
        """Return the bytes of one client in `step` with one batch `x`, `y`: a bound computed on the CPU, not measured."""
        sizes: dict[str, int] = {name: shape.numel() * dtype.itemsize for name, (shape, dtype) in self._shapes.items()}
        trained = sum(sizes[name] for name in self.trained)
        copies = 4 if self._adam else 2  # gradients, moments, and temporary values of a step
        as_float64 = 2 * 8 * max(shape.numel() for shape, _ in self._shapes.values())
        # During the backward pass, values that autograd keeps and their gradients are both in memory.
        total: int = (
            sum(sizes.values()) + copies * trained + as_float64 + 2 * self._kept_bytes(x, y) + x.nbytes + y.nbytes
        )
        return total

    def _kept_bytes(self, x: Tensor, y: Tensor) -> int:
        """Return the bytes that autograd keeps for the backward pass of one client."""
        kept: dict[int, int] = {}

        def keep(value: Tensor) -> Tensor:
            kept[value.data_ptr()] = value.nbytes
            return value

        with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            loss = self._task.loss(use_products(self._task.build_model())(x), y)
            del loss
        return sum(kept.values())


def _along(per_client: Tensor, value: Tensor) -> Tensor:
    """Reshape (clients,) to multiply (clients, ...)."""
    return per_client.to(value.dtype).view(-1, *[1] * (value.dim() - 1))


@contextmanager
def _task_errors(task: Task) -> Iterator[None]:
    """Raise an error with the remedy if torch cannot compute a model or a batch in stacks."""
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
    """Let convolutions on a GPU have full float32 precision and be deterministic; no effect on other devices."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    return flags


T = TypeVar("T")

CPU_GROUP = 20
"""Fastest of 1, 5, 20, 50 and 200 for the 2NN: the gradients of a larger group do not fit into the cache."""
DATA_SHARE = 0.4
"""Share of a GPU's free memory that the population's data may take; larger data are copied batch by batch."""
GROUP_SHARE = 0.5
"""Share of the remaining free memory that a group may take."""
MEASURED_PER_TRAINED = 4
"""A pass of measuring takes so many times the examples of training: it has no gradients."""


class StackedCohort:
    """A cohort trained in groups of `group` clients at once; see simulator.learners.protocols.Cohort.

    The default `group` is CPU_GROUP on a CPU, and on a GPU as many clients as fit. Raises UsageError for a device that torch
    does not have, and for a strategy that has its own LocalUpdate.
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
        """Do nothing: there is no other process."""

    def _fitting(self, population: Population) -> int:
        """Return the default number of clients in a group."""
        free = _free_bytes(self._device)
        if free is None:
            return CPU_GROUP
        most = max(range(population.clients), key=population.num_examples.__getitem__)
        data, batch = population.of(most), slice(self._plan.batch_size)
        return max(1, int(GROUP_SHARE * free / self._model.nbytes_per_client(data.train_x[batch], data.train_y[batch])))

    # ---- user accuracy

    def measure(self, clients: Sequence[int]) -> list[float]:
        """Return the user accuracy of each client."""
        counts = self._test.counts
        longest = min(EVALUATION_BATCH, max(counts[client] for client in clients))
        at_once = max(1, self.group * self._plan.batch_size * MEASURED_PER_TRAINED // longest)
        # Shorter test sets are padded, unless that would change the outputs.
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
        for batch in evaluation_batches(counts[0]):
            columns = np.arange(batch.start, batch.stop)
            rows = [
                test.starts[one] + np.minimum(columns, test.counts[one] - 1)
                for one in group
                if batch.start < test.counts[one]
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
        """Return the weighted mean of the members' updates, and their losses."""
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
        """Train a group whose first member has the most steps; return each member's mean loss over its steps."""
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
        """Return the examples of every batch, (steps, clients, batch); zeros after a client's last step."""
        rows = np.zeros((steps[0], len(group), self._batch_size(group[0])), np.int64)
        for place, (one, count) in enumerate(zip(group, steps, strict=True)):
            seed = stream_seed(self._plan.seed, client_id(one.client))
            own = batch_indices(self._train.counts[one.client], self._plan.batch_size, one.first_batch, count, seed)
            rows[:count, place] = self._train.starts[one.client] + np.stack(list(own))
        return self._train.nearby(torch.from_numpy(rows))

    # ---- copies to and from the stacks

    def _load(self, clients: Sequence[int], *, moments: bool) -> None:
        """Load global values and patches; moments that do not travel and are not kept begin at zero."""
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
    """The training or test examples of all clients: on the training device, or on the CPU if they are too many for it."""

    def __init__(self, x: Tensor, y: Tensor, starts: Sequence[int], device: torch.device, *, held: bool) -> None:
        self._blocks = tuple(block.to(device) if held else block for block in (x, y))
        self._y, self._device = y, device
        self.starts = starts
        self.counts = [end - start for start, end in pairwise(starts)]

    def nearby(self, rows: Tensor) -> Tensor:
        """Return `rows` on the device of the examples."""
        return rows.to(self._blocks[0].device)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the examples `rows`, (clients, batch), on the training device."""
        flat = self.nearby(rows.reshape(-1))
        chosen = (block.index_select(0, flat).to(self._device) for block in self._blocks)
        x, y = (values.view(*rows.shape, *values.shape[1:]) for values in chosen)
        return x, y

    def targets(self, client: int) -> Tensor:
        """Return all targets of one client, on the CPU."""
        return self._y[self.starts[client] : self.starts[client] + self.counts[client]]


def _placed(population: Population, device: torch.device) -> tuple[_Examples, _Examples]:
    """Return training and test examples."""
    one, free = population, _free_bytes(device)
    nbytes = sum(block.nbytes for block in (one.train_x, one.train_y, one.test_x, one.test_y))
    held = free is None or nbytes < DATA_SHARE * free
    return (
        _Examples(one.train_x, one.train_y, one.train_starts, device, held=held),
        _Examples(one.test_x, one.test_y, one.test_starts, device, held=held),
    )


def _cut(ordered: Sequence[T], alike: Callable[[T], int], size: int) -> Iterator[list[T]]:
    """Yield groups of at most `size` items, in order; `alike` is equal for all items of a group."""
    for _, same in groupby(ordered, alike):
        while group := list(islice(same, size)):
            yield group


def _free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a GPU; None for a CPU, whose memory has the data already."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros((), dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # the type depends on the build of torch
        reason = str(error).partition("\n")[0]
        raise UsageError(f"device {name!r} cannot be used here ({reason}); use --device cpu") from error
    return device


def _require_stackable(context: LearnerContext) -> None:
    strategy = context.study.strategy
    if strategy in BASELINES and strategy != "independent":
        raise UsageError(f"{strategy} is trained one client at a time only; use --device cpu")
