"""The work that all contestants do: the terms of a round and the clients' data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpatch.coordinator.strategies.fedavg import FedAvg
from fedpatch.shared.tasks.task import Task, data_root, find_task
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.simulator.clients.population import Population, load_population
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.spec.study import Study

MANY_ROUNDS = 1_000_000


@dataclass(frozen=True)
class Work:
    """A round of `study`: every client trains `steps[client]` steps of `study.batch_size` examples; updates are averaged."""

    task: Task
    study: Study
    population: Population
    steps: list[int]

    @property
    def client_steps(self) -> int:
        """Number of steps of all clients in a round with all clients."""
        return sum(self.steps)


def make_work(task_ref: str, clients: int, *, participation: float = 1.0) -> Work:
    """Return the work of FedAvg with private batch norm (gamma and beta), one pass over the clients' data in a round.

    Raises UsageError and DataError as `find_task` and the task's loader do.
    """
    task = find_task(task_ref)
    study = make_study(
        task=task,
        task_ref=task_ref,
        clients=clients,
        strategy="fedavg",
        private="affine",
        participation=participation,
        rounds=MANY_ROUNDS,
    )
    population = load_population(task, study.data, clients, study.seed, data_root())
    return Work(task, study, population, [plan_of(study).steps_for(count) for count in population.num_examples])


def plan_of(study: Study) -> TrainPlan:
    """Return the plan of a client in a round."""
    return FedAvg().plan(study.learning_rate, study.batch_size, study.epochs, study.steps, study.seed)


def write_work(work: Work, folder: Path) -> None:
    """Write to `folder` the input of programs without fedpatch: arrays, initial values, and terms as JSON."""
    np.save(folder / "train_x.npy", work.population.train_x.numpy())
    np.save(folder / "train_y.npy", work.population.train_y.numpy())
    initial: dict[str, Any] = dict(initial_tensors(work.task, work.study.seed))
    np.savez(folder / "initial.npz", **initial)
    terms = {
        "starts": work.population.train_starts,
        "batch_size": work.study.batch_size,
        "steps": work.steps,
        "learning_rate": work.study.learning_rate,
    }
    (folder / "terms.json").write_text(json.dumps(terms), "utf-8")


def linear_shapes(task: Task) -> list[tuple[int, int]]:
    """Return (inputs, outputs) of the task's linear layers, from the first to the last."""
    with torch.random.fork_rng(devices=[]):
        model = task.build_model()
    return [
        (module.in_features, module.out_features) for module in model.modules() if isinstance(module, torch.nn.Linear)
    ]
