"""One model for many clients: every tensor has a client axis in front, and a step moves all clients by one batch each.

The forward pass is the task's own module, mapped over clients (torch.func). Clients do not meet in it, so the gradient of
the sum of their losses is the gradient of each; autograd then works on whole stacks, and nothing of it is mapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from shared.errors import DataError, UsageError
from shared.messages import TrainPlan
from shared.model import schema_of
from shared.task import Task
from shared.tensors import MOMENTS, TRAINABLE, moment_name

Values = dict[str, Tensor]


class StackedModel:
    """`stacks[name]` has shape (room, ...): a place for each of `room` clients, of which the first `count` are used at a time.

    `name` is that of a tensor in the model's state, or of a moment of a trained one (Adam only). A tensor that the model has
    under several names has one stack; `stack` finds it by any of them.
    """

    def __init__(self, task: Task, plan: TrainPlan, device: torch.device) -> None:
        self._task, self._plan, self._device = task, plan, device
        with torch.random.fork_rng(devices=[]):
            self._module = task.build_model().to(device)
        state = self._module.state_dict(keep_vars=True)
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
            with _problems_told(self._task):
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
        """Which of the first `count` clients have nothing but finite values, moments among them, (clients,)."""
        floats = [
            stack[:count].reshape(count, stack[0].numel())
            for stack in self.stacks.values()
            if stack.is_floating_point()
        ]
        return torch.stack([values.isfinite().all(1) for values in floats]).all(0)

    @property
    def mixes_examples(self) -> bool:
        """Whether an example's outputs depend on the others of its batch, in evaluation mode too."""
        return any(isinstance(part, _BatchNorm) and part.running_mean is None for part in self._module.modules())

    # ---- passes

    def outputs(self, x: Tensor) -> Tensor:
        """In evaluation mode: (clients, examples, ...) to outputs of the same axes."""
        self._module.eval()
        with torch.no_grad(), _problems_told(self._task), _exact():
            outputs: Tensor = vmap(self._forward)(self._values(len(x)), x)
        return outputs

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Train the first `len(x)` clients by one batch each, (clients, examples, ...); returns their losses, (clients,)."""
        count = len(x)
        self._module.train()
        values = self._values(count)
        leaves = {name: values[name].detach().requires_grad_() for name in self.trained}
        with _problems_told(self._task), _exact():
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
            loss = self._task.loss(self._task.build_model()(x), y)
            del loss
        return sum(kept.values())


def _along(per_client: Tensor, value: Tensor) -> Tensor:
    """(clients,) so that it multiplies (clients, ...)."""
    return per_client.to(value.dtype).view(-1, *[1] * (value.dim() - 1))


@contextmanager
def _problems_told(task: Task) -> Iterator[None]:
    """Say what is wrong where torch says that a model or a batch cannot be computed in stacks."""
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
