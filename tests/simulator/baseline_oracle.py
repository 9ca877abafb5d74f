"""A second implementation of the baselines from their papers: a module for every client, autograd for every gradient.

It uses fedpatch's code only for parts that all baselines share: the data, the selection of clients, and the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpatch.device_agent.training.batches import batch_indices, stream_seed
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import initial_tensors, load_tensors
from fedpatch.simulator.experiment.client_selection import select
from fedpatch.simulator.spec.study import Study, client_id

MU = 0.001  # pFedMe's authors' own setting

Batch = tuple[Tensor, Tensor]


class NaiveClient:
    """A client's data, the number of batches it took, and its own model if the algorithm has one."""

    def __init__(self, study: Study, task: Task, number: int) -> None:
        spec = study.data.format(index=number, count=study.clients, seed=study.seed)
        data = task.load_data(spec, Path("/nonexistent"))
        self.train = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
        self.test = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
        self.own: nn.Module | None = None
        self.taken = 0
        self._batch_size, self._stream = study.batch_size, stream_seed(study.seed, client_id(number))

    @property
    def examples(self) -> int:
        return len(self.train[0])

    @property
    def steps(self) -> int:
        """Local steps in a round of one epoch."""
        return max(1, round(self.examples / self._batch_size))

    def look_ahead(self, count: int) -> list[Batch]:
        x, y = self.train
        numbers = batch_indices(self.examples, self._batch_size, self.taken, count, self._stream)
        return [(x[one], y[one]) for one in map(torch.from_numpy, numbers)]

    def take(self) -> Batch:
        (batch,) = self.look_ahead(1)
        self.taken += 1
        return batch


class Algorithm(Protocol):
    """A client's operations on the global model; each method gets its own copy of the model."""

    def train(self, model: nn.Module, client: NaiveClient) -> nn.Module:
        """The model that the client sends."""

    def used(self, model: nn.Module, client: NaiveClient) -> nn.Module:
        """The model that the client would use before its next training."""


class PerFedAvg:
    """Fallah et al. 2020, first order."""

    def __init__(self, study: Study) -> None:
        assert study.adaptation_rate is not None
        self._alpha, self._beta = study.adaptation_rate, study.learning_rate

    def train(self, model: nn.Module, client: NaiveClient) -> nn.Module:
        for _ in range(client.steps):
            adapted = deepcopy(model)
            descend(adapted, gradients(adapted, client.take()), self._alpha)
            grads = gradients(adapted, client.take())
            copy_buffers(adapted, model)  # one set of statistics, moved by both passes
            descend(model, grads, self._beta)
        return model

    def used(self, model: nn.Module, client: NaiveClient) -> nn.Module:
        (batch,) = client.look_ahead(1)
        descend(model, gradients(model, batch), self._alpha)
        return model


class PFedMe:
    """T. Dinh et al. 2020, Algorithm 1 with K = 1 and beta = 1."""

    def __init__(self, study: Study) -> None:
        assert study.proximity is not None
        self._eta, self._lambda = study.learning_rate, study.proximity

    def train(self, model: nn.Module, client: NaiveClient) -> nn.Module:
        w, theta = deepcopy(model), deepcopy(model)
        for _ in range(client.steps):
            grads = gradients(theta, client.take())
            with torch.no_grad():
                for ours, local, grad in zip(theta.parameters(), w.parameters(), grads, strict=True):
                    ours.sub_(self._eta * (grad + self._lambda * (ours - local) + MU * ours))
                    local.sub_(self._eta * self._lambda * (local - ours))
        client.own = deepcopy(theta)
        copy_buffers(theta, w)
        return w

    def used(self, model: nn.Module, client: NaiveClient) -> nn.Module:
        return client.own or model


class Independent:
    """SGD on the client's own model alone."""

    def __init__(self, study: Study) -> None:
        self._rate = study.learning_rate

    def train(self, model: nn.Module, client: NaiveClient) -> nn.Module:
        client.own = client.own or deepcopy(model)
        for _ in range(client.steps):
            descend(client.own, gradients(client.own, client.take()), self._rate)
        return model

    def used(self, model: nn.Module, client: NaiveClient) -> nn.Module:
        return client.own or model


ALGORITHMS: dict[str, type] = {"per-fedavg": PerFedAvg, "pfedme": PFedMe, "independent": Independent}


class Naive:
    """A simulation, a round at a time."""

    def __init__(self, study: Study, task: Task) -> None:
        self.study, self._task = study, task
        self.model = task.build_model()
        load_tensors(self.model, initial_tensors(task, study.seed))
        self.clients = [NaiveClient(study, task, number) for number in range(study.clients)]
        self._algorithm: Algorithm = ALGORITHMS[study.strategy](study)
        self._round = 0

    def user_accuracies(self) -> list[float]:
        """User accuracy of each client that is selected for the next round."""
        return [self._user_accuracy(self.clients[one]) for one in self._selected()]

    def train(self) -> None:
        clients = [self.clients[one] for one in self._selected()]
        sent = [self._algorithm.train(deepcopy(self.model).train(), client) for client in clients]
        average(self.model, sent, [client.examples for client in clients])
        self._round += 1

    def _user_accuracy(self, client: NaiveClient) -> float:
        x, y = client.test
        model = deepcopy(self._algorithm.used(deepcopy(self.model).train(), client)).eval()
        with torch.no_grad():
            return self._task.metric(model(x), y)

    def _selected(self) -> list[int]:
        ids = [client_id(number) for number in range(self.study.clients)]
        chosen = select(ids, self.study.participation, 1.0, 1, self.study.seed, self._round + 1)
        return [ids.index(one) for one in chosen.invited]


def gradients(model: nn.Module, batch: Batch) -> Sequence[Tensor]:
    """Gradients of the mean cross-entropy, by parameter; the pass updates the running statistics."""
    x, y = batch
    return torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))


@torch.no_grad()
def descend(model: nn.Module, grads: Sequence[Tensor], rate: float) -> None:
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.sub_(rate * grad)


@torch.no_grad()
def copy_buffers(source: nn.Module, target: nn.Module) -> None:
    """Statistics, and the count of batches."""
    for new, old in zip(source.buffers(), target.buffers(), strict=True):
        old.copy_(new)


@torch.no_grad()
def average(model: nn.Module, sent: Sequence[nn.Module], examples: Sequence[int]) -> None:
    """Set `model` to the mean of the sent models, weighted by examples."""
    states = [one.state_dict() for one in sent]
    for name, value in model.state_dict().items():
        mean = sum(count / sum(examples) * state[name].double() for state, count in zip(states, examples, strict=True))
        assert isinstance(mean, Tensor)
        value.copy_(mean if value.is_floating_point() else mean.round())
