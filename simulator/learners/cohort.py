"""A cohort's LocalUpdates: who trains how, in which order sums are taken, and over how many processes.

A cohort is cut into the same chunks however many processes there are, and their sums are added in the order of the
chunks: one worker or ten give the same model, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shared.errors import UpdateRefused
from shared.task import Task
from simulator.bounded import SpooledLearner
from simulator.draws import Turn
from simulator.fused import FusedLearner
from simulator.ground import Ground
from simulator.one_by_one import OneByOneLearner
from simulator.sequences import layers_of
from simulator.uplink import EncodedLearner

CHUNKS = 16


@dataclass(frozen=True)
class Member:
    """A client in a round: how many batches it took before, and its share of all the round's examples."""

    client: int
    first_batch: int
    weight: float


class Learner(Protocol):
    """Holds one model and lends it to one client after another."""

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""

    def measure(self, client: int) -> float:
        """User accuracy of the global model with this client's patch."""

    def expect(self, turns: Sequence[Turn]) -> None:
        """Who will be trained next, most likely, in this order: what they need can be made ready for many at once."""

    def train(self, client: int, first_batch: int, weight: float) -> float:
        """LocalUpdate; the patch is kept, the rest is added to the sums. Returns the mean loss over the steps."""

    def result(self) -> Tensor:
        """Weighted sums of the clients trained since the last call: a float64 vector that `tensors_of` can read."""

    def tensors_of(self, total: Tensor) -> dict[str, Tensor]:
        """Tensors by name, float64, from a (sum of) `result`."""


def make_learner(task: Task, ground: Ground) -> Learner:
    """The fastest learner that can train the task's model on a CPU."""
    with torch.random.fork_rng(devices=[]):
        model = task.build_model()
    layers = layers_of(model)
    learner: Learner = OneByOneLearner(task, ground) if layers is None else FusedLearner(task, model, layers, ground)
    return spooled(encoded(learner, ground), ground)


def spooled(learner: Learner, ground: Ground) -> Learner:
    """The same learner, or one that keeps each update by itself where they are to be bounded."""
    return learner if ground.spool is None else SpooledLearner(learner, ground.travelling, ground.spool)


def encoded(learner: Learner, ground: Ground) -> Learner:
    """The same learner, or one that sends what it trained as the study's encoding has it."""
    if ground.uplink is None:
        return learner
    return EncodedLearner(learner, ground.uplink, ground.plan, ground.population.num_examples)


def chunks_of(members: Sequence[Member]) -> list[Sequence[Member]]:
    """At most CHUNKS parts of almost equal length, in order."""
    size = max(1, -(-len(members) // CHUNKS))
    return [members[start : start + size] for start in range(0, len(members), size)]


def train_chunk(learner: Learner, members: Sequence[Member]) -> list[float]:
    """Losses of the members, in order; the learner holds the sums. Raises UpdateRefused where one diverges."""
    losses = []
    learner.expect([(one.client, one.first_batch) for one in members])
    for one in members:
        try:
            loss = learner.train(one.client, one.first_batch, one.weight)
        except UpdateRefused as error:  # as the device says it, which knows no number
            raise UpdateRefused(error.reason, f"client {one.client}: {error}") from error
        if not math.isfinite(loss):
            raise UpdateRefused(
                "not_finite", f"the loss of client {one.client} became {loss}; try a smaller learning rate"
            )
        losses.append(loss)
    return losses


class Cohort(Protocol):
    """Trains and measures many clients of a round."""

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""

    def measure(self, clients: Sequence[int]) -> list[float]:
        """User accuracy of each."""

    def train(self, members: Sequence[Member]) -> tuple[dict[str, Tensor], list[float]]:
        """The weighted mean (float64) of what the members send, and their losses."""

    def close(self) -> None:
        """End what it started."""


class InProcess:
    """A cohort trained by this process alone."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model of the round."""
        self.learner.begin(tensors)

    def measure(self, clients: Sequence[int]) -> list[float]:
        """User accuracy of each."""
        return [self.learner.measure(client) for client in clients]

    def train(self, members: Sequence[Member]) -> tuple[dict[str, Tensor], list[float]]:
        """The weighted mean of what the members send, and their losses."""
        total, losses = None, []
        for chunk in chunks_of(members):
            losses += train_chunk(self.learner, chunk)
            part = self.learner.result()
            total = part if total is None else total.add_(part)
        assert total is not None
        return self.learner.tensors_of(total), losses

    def close(self) -> None:
        """Nothing to end."""
