"""Contestants of benchmarks.device.device: equal training steps by the device's own trainer and by a bare PyTorch loop."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn

from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.device_agent.training.batches import batch_indices
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.training_process import PROGRESS_EVERY_S, TrainingControl
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.wire.messages import TrainPlan

_STREAM = 7


class Steps:
    """Work of both contestants: `steps` of a strategy's LocalUpdate on a device's data, always from the initial model."""

    def __init__(self, task: Task, data: DeviceData, strategy: str, steps: int) -> None:
        self.task, self.data, self.steps = task, data, steps
        chosen = find_strategy(strategy)
        learning_rate = task.learning_rates.get(strategy, 0.01)
        self.plan: TrainPlan = chosen.plan(learning_rate, task.batch_size, 0, steps, 0)
        self.tensors = initial_tensors(task, 0)


class OwnTrainer:
    """The agent's trainer, called as in its training process; user accuracy is not measured."""

    def __init__(self, work: Steps) -> None:
        self._work = work
        data = work.data
        self._trainer = LocalTrainer(
            work.task, DeviceData(data.train_x, data.train_y, data.test_x, data.test_y, counts_in_ua=False)
        )
        self._told_at = 0.0

    def play(self) -> float | None:
        """Train all steps; return their mean loss."""
        work = self._work
        result = self._trainer.run(
            work.tensors,
            work.plan,
            first_batch=0,
            stream_seed=_STREAM,
            on_step=self._on_step,
            cancelled=TrainingControl().cancelled,
        )
        assert result is not None
        return result.train_loss

    def _on_step(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._told_at >= PROGRESS_EVERY_S:
            self._told_at = now


class BareLoop:
    """torch.nn, autograd and torch.optim, with data as tensors in memory; the losses are read only at the end."""

    def __init__(self, work: Steps) -> None:
        self._work = work
        self._model: nn.Module = work.task.build_model()
        self._x = torch.from_numpy(np.ascontiguousarray(work.data.train_x))
        self._y = torch.from_numpy(np.ascontiguousarray(work.data.train_y))

    def play(self) -> float | None:
        """Train all steps; return their mean loss."""
        work, plan, model = self._work, self._work.plan, self._model
        model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in work.tensors.items()})
        model.train()
        optimizer = self._optimizer(plan)
        losses: list[Tensor] = []
        for chosen in batch_indices(len(self._x), plan.batch_size, 0, work.steps, _STREAM):
            indices = torch.from_numpy(chosen)
            optimizer.zero_grad()
            loss = work.task.loss(model(self._x[indices]), self._y[indices])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    def _optimizer(self, plan: TrainPlan) -> torch.optim.Optimizer:
        if plan.client_optimizer == "sgd":
            return torch.optim.SGD(self._model.parameters(), lr=plan.learning_rate)
        betas = plan.beta_1, plan.beta_2
        return torch.optim.Adam(self._model.parameters(), lr=plan.learning_rate, betas=betas, eps=plan.epsilon)
