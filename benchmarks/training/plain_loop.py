"""The usual way to simulate a round with PyTorch: each client's weights are loaded in turn into one model.

It is written for speed, but only with torch.nn, autograd and torch.optim: the data are tensors in memory (no DataLoader, which
is slower), batches are taken by index, the optimizer is made once, the mean is a running sum. The batches are those of
fedpatch, so both learn the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from benchmarks.support.work import Work, plan_of
from fedpatch.device_agent.training.batches import batch_indices, stream_seed
from fedpatch.shared.tasks.task import Task, find_task
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.simulator.clients.population import Population
from fedpatch.simulator.spec.study import Study, client_id


class PlainLoop:
    """Rounds of the first `clients` clients of `work` (None: of all), in this process.

    With `channels_last`, images and filters have their channels last in memory, which is faster for convolutions on a CPU.
    """

    def __init__(self, work: Work, clients: int | None = None, *, channels_last: bool = False) -> None:
        self._clients = range(work.study.clients if clients is None else clients)
        self._trainer = _Trainer(work.task, work.study, work.population, self._clients, channels_last=channels_last)
        self.model = _initial(work.task, work.study)

    def play(self) -> float | None:
        """Run the next round; return its mean training loss."""
        total, losses = self._trainer.train(self.model, self._clients)
        self.model = {name: value.to(self.model[name].dtype) for name, value in total.items()}
        return float(sum(losses) / len(losses))


class PlainLoopWorkers:
    """Trainer with permanent processes: each process has its share of the clients, and returns the sum over them."""

    def __init__(self, work: Work, processes: int) -> None:
        context = mp.get_context("spawn")
        self.model = _initial(work.task, work.study)
        self._connections: list[Connection] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            clients = range(work.study.clients)[number::processes]
            process = context.Process(target=_serve, args=(theirs, work.study, work.population, clients), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def play(self) -> float | None:
        """Run the next round; return its mean training loss."""
        for connection in self._connections:
            connection.send({name: value.numpy() for name, value in self.model.items()})
        parts = [connection.recv() for connection in self._connections]
        self.model = {
            name: torch.from_numpy(np.asarray(sum(total[name] for total, _ in parts))).to(value.dtype)
            for name, value in self.model.items()
        }
        losses = [loss for _, some in parts for loss in some]
        return float(sum(losses) / len(losses))

    def pids(self) -> list[int]:
        """Return this process and the others."""
        return [os.getpid(), *(process.pid for process in self._processes if process.pid is not None)]

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join()


class _Trainer:
    """One resident model, and the patches of the clients that it has trained."""

    def __init__(
        self, task: Task, study: Study, population: Population, cohort: Sequence[int], *, channels_last: bool = False
    ) -> None:
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        with torch.random.fork_rng(devices=[]):
            self._model: nn.Module = task.build_model()
        if channels_last:
            self._model.to(memory_format=self._layout)  # type: ignore[call-overload]
        self._task, self._study, self._population = task, study, population
        self._plan = plan_of(study)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=study.learning_rate)
        self._private = parse_policy(study.private).private_names(schema_of(self._model))
        self._patches: dict[int, dict[str, Tensor]] = {}
        self._batches: dict[int, int] = {}
        self._examples = sum(population.num_examples[client] for client in cohort)

    def train(self, model: dict[str, Tensor], clients: Sequence[int]) -> tuple[dict[str, Tensor], list[float]]:
        """Return the weighted sum of the clients' trained models (integers as float64), and their mean losses."""
        total = {
            name: torch.zeros_like(value, dtype=value.dtype if value.is_floating_point() else torch.float64)
            for name, value in model.items()
        }
        losses = []
        for client in clients:
            self._model.load_state_dict(model | self._patches.get(client, {}))
            losses.append(self._train_one(client))
            weight = self._population.num_examples[client] / self._examples
            self._patches[client] = {}
            for name, value in self._model.state_dict().items():
                if name in self._private:
                    self._patches[client][name] = value.clone()
                total[name].add_(value, alpha=weight)
        return total, losses

    def _train_one(self, client: int) -> float:
        data = self._population.of(client)
        steps = self._plan.steps_for(len(data.train_x))
        begun = self._batches.get(client, 0)
        self._batches[client] = begun + steps
        seed = stream_seed(self._study.seed, client_id(client))
        loss_sum = torch.zeros(())
        self._model.train()
        for indices in batch_indices(len(data.train_x), self._study.batch_size, begun, steps, seed):
            chosen = torch.from_numpy(indices)
            self._optimizer.zero_grad()
            examples = data.train_x[chosen].contiguous(memory_format=self._layout)
            loss = self._task.loss(self._model(examples), data.train_y[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            loss_sum += loss.detach()
        return float(loss_sum) / steps


def _initial(task: Task, study: Study) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in initial_tensors(task, study.seed).items()}


def _serve(
    connection: Connection, study: Study, population: Population, clients: Sequence[int]
) -> None:  # pragma: no cover - runs in another process
    torch.set_num_threads(1)
    trainer = _Trainer(find_task(study.task), study, population, range(study.clients))
    while True:
        try:
            model = connection.recv()
        except EOFError:
            return
        total, losses = trainer.train({name: torch.from_numpy(array) for name, array in model.items()}, clients)
        connection.send(({name: value.numpy() for name, value in total.items()}, losses))
