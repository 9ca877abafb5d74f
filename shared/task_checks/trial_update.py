"""Trial of an update: some training steps by the plan of a run, and the coordinator's checks of the bytes that would travel.

It needs torch, uses a model of its own and restores torch's random state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedpatch.shared.errors import DataError, FedpatchError, UpdateRefused
from fedpatch.shared.tasks.frozen_values import new_model
from fedpatch.shared.tasks.losses import mean_loss
from fedpatch.shared.tasks.optimizers import Adam, ClientOptimizer, ControlVariates, Sgd
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import resolve_private, schema_of, to_tensors
from fedpatch.shared.tensors.arrays import Array, Schema, moment_name
from fedpatch.shared.tensors.common_update_checks import ExpectedUpdate, read_update
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.field_types import MAX_MEASURE
from fedpatch.shared.wire.messages import TrainPlan, UpdateReport

ENCODING = "delta-int8"
"""The default encoding of a run."""

MOST_STEPS = 50
MOST_S = 10.0
_BASE = "00" * 32


@dataclass(frozen=True)
class TrialUpdate:
    """The update of a trial that every check has accepted.

    Attributes:
        optimizer: The client optimizer of the plan.
        learning_rate: Its learning rate.
        losses: The loss of each step.
    """

    optimizer: str
    learning_rate: float
    losses: tuple[float, ...]

    @property
    def words(self) -> str:
        """The steps in words."""
        steps = "one step" if len(self.losses) == 1 else f"{len(self.losses)} steps"
        change = f"{self.losses[0]:.3g} to {self.losses[-1]:.3g}"
        return f"{steps} of {self.optimizer} with learning rate {self.learning_rate:g} take the loss from {change}"


def trial_update(task: Task, data: DeviceData, plan: TrainPlan, private: str) -> TrialUpdate:
    """Train some steps as a device does in its first round, and check the update as the coordinator does.

    Args:
        data: A device's data, as `fedpatch.shared.task_checks.data_checks.fit` gives them.
        plan: The training plan; at most MOST_STEPS of its steps are made, and none begins after MOST_S.
        private: The patch policy.

    Raises:
        UpdateRefused: Training diverged, or the coordinator would refuse the update.
        DataError: A step failed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(plan.seed)
        module = new_model(task)
        schema = schema_of(module)
        names = resolve_private(private, module, task.head).private_names(schema.with_moments(plan.moments))
        travelling = schema.with_moments(plan.moments)
        travelling = travelling.subset(set(travelling.names) - names)
        zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in travelling.specs}
        base = zeros | {name: value for name, value in to_tensors(module).items() if name in travelling}
        losses, moments = _train(task, module, data, plan, schema, base)
    tensors = to_tensors(module) | moments
    count = len(data.train_x)
    loss = max(-MAX_MEASURE, min(mean_loss(losses), MAX_MEASURE))
    report = UpdateReport(_BASE, count, len(losses), loss, None, None, 0.0, 0.0)
    update = {name: tensors[name] for name in travelling.names}
    packed = pack(update, travelling, report.plain, ENCODING, base=base)
    expected = ExpectedUpdate(travelling, names, _BASE, base, plan)
    read_update(packed.blob, expected, encoding=ENCODING, raw_bytes=packed.raw_bytes)
    return TrialUpdate(plan.client_optimizer, plan.learning_rate, tuple(losses))


def _train(
    task: Task, module: nn.Module, data: DeviceData, plan: TrainPlan, schema: Schema, base: Mapping[str, Array]
) -> tuple[list[float], dict[str, Array]]:
    """Make the steps; return their losses, and the moments that travel."""
    trained = {
        name: value for name, value in module.named_parameters() if name in schema and schema.spec(name).trainable
    }
    controls = None
    optimizer: ClientOptimizer
    if plan.client_optimizer == "adam":
        states = {value: _zero_state(value) for value in trained.values()}
        betas = plan.beta_1, plan.beta_2
        adam = Adam(list(trained.values()), plan.learning_rate, betas=betas, epsilon=plan.epsilon, state=states)
        optimizer = adam
    elif plan.has_controls:
        private = [name for name in trained if name not in base]
        controls = ControlVariates(trained, base, {}, private)
        optimizer = controls.optimizer(plan.learning_rate)
    else:
        optimizer = Sgd(list(trained.values()), plan.learning_rate)
    x, y = torch.from_numpy(np.array(data.train_x)), torch.from_numpy(np.array(data.train_y))
    losses, began, steps = list[float](), time.perf_counter(), min(MOST_STEPS, max(1, plan.steps_for(len(x))))
    module.train()
    for step in range(steps):
        if losses and time.perf_counter() - began > MOST_S:
            break
        size = min(plan.batch_size, len(x))
        rows = torch.arange(step * size, (step + 1) * size) % len(x)
        losses.append(_step(task, module, optimizer, x[rows], y[rows]))
        if not math.isfinite(losses[-1]):
            rate = f"learning rate {plan.learning_rate:g}"
            raise UpdateRefused(
                "not_finite", f"the loss was {losses[-1]} at step {step + 1} of {plan.client_optimizer} with {rate}"
            )
    if controls is not None:
        return losses, controls.after(len(losses), plan.learning_rate)[0]
    if plan.client_optimizer != "adam":
        return losses, {}
    kept = {
        moment_name(name, moment): np.array(adam.state[value][moment].numpy())
        for name, value in trained.items()
        for moment in plan.moments
    }
    return losses, kept


def _zero_state(value: nn.Parameter) -> dict[str, torch.Tensor]:
    zeros = torch.zeros_like(value, requires_grad=False)
    return {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}


def _step(task: Task, module: nn.Module, optimizer: ClientOptimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    optimizer.zero_grad()
    try:
        loss = task.loss(module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
    except FedpatchError:
        raise
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise DataError(f"task {task.name!r}: a training step failed: {words}") from error
    optimizer.step()
    return float(loss.item())
