"""LocalUpdate for a whole cohort: choice of the learner, order of the sums, number of processes.

A cohort has the same chunks for any number of processes, and their sums are added in the order of the chunks: one worker
or ten give the same model, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.simulator.kernels.model_layers import layers_of
from fedpatch.simulator.learners.encoded_learner import EncodedLearner
from fedpatch.simulator.learners.fused_learner import FusedLearner
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.norm_bounded_learner import SpooledLearner
from fedpatch.simulator.learners.protocols import CohortMember, Learner
from fedpatch.simulator.learners.reference_learner import OneByOneLearner

CHUNKS = 16


def make_learner(task: Task, context: LearnerContext) -> Learner:
    """Return the fastest learner that can train the task's model on a CPU.

    Plans with terms, control variates, Adam without all of its moments, or frozen values use the device's own code.
    """
    with torch.random.fork_rng(devices=[]):
        model = task.build_model()
    plan = context.plan
    lacking = plan.client_optimizer == "adam" and not set(plan.moments).issuperset(MOMENTS)
    own_code = plan.terms or plan.has_controls or lacking or task.frozen
    layers = None if own_code else layers_of(model)
    learner: Learner = OneByOneLearner(task, context) if layers is None else FusedLearner(task, model, layers, context)
    return spooled(encoded(learner, context), context)


def spooled(learner: Learner, context: LearnerContext) -> Learner:
    """Return the learner, or, if the context has a spool, one that stores each update separately."""
    return learner if context.spool is None else SpooledLearner(learner, context.travelling, context.spool)


def encoded(learner: Learner, context: LearnerContext) -> Learner:
    """Return the learner, or, if the context has an uplink, one that sends its updates in the study's encoding."""
    if context.uplink is None:
        return learner
    return EncodedLearner(learner, context.uplink, context.plan, context.population.num_examples)


def chunks_of(members: Sequence[CohortMember]) -> list[Sequence[CohortMember]]:
    """Return at most CHUNKS parts in order. Their lengths differ by at most one, and so do the two halves, for two ranks."""
    ends = [part * len(members) // CHUNKS for part in range(CHUNKS + 1)]
    return [members[start:end] for start, end in pairwise(ends) if start < end]


def train_chunk(learner: Learner, members: Sequence[CohortMember]) -> list[float]:
    """Return the losses of the members, in order; the learner has the sums. Raises UpdateRefused if a member diverges."""
    losses = []
    learner.expect([(one.client, one.first_batch) for one in members])
    for one in members:
        try:
            loss = learner.train(one.client, one.first_batch, one.weight)
        except UpdateRefused as error:  # the message of the device's code has no client number
            raise UpdateRefused(error.reason, f"client {one.client}: {error}") from error
        if not math.isfinite(loss):
            raise UpdateRefused(
                "not_finite", f"the loss of client {one.client} became {loss}; try a smaller learning rate"
            )
        losses.append(loss)
    return losses


class InProcess:
    """A cohort trained by this process alone."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model of the round."""
        self.learner.begin(tensors)

    def measure(self, clients: Sequence[int]) -> list[float]:
        """Return the user accuracy of each client."""
        return [self.learner.measure(client) for client in clients]

    def train(self, members: Sequence[CohortMember]) -> tuple[dict[str, Tensor], list[float]]:
        """Return the weighted mean of the members' updates, and their losses."""
        total, losses = None, []
        for chunk in chunks_of(members):
            losses += train_chunk(self.learner, chunk)
            part = self.learner.result()
            total = part if total is None else total.add_(part)
        assert total is not None
        return self.learner.tensors_of(total), losses

    def close(self) -> None:
        """Do nothing: there is no other process."""
