"""fedpatch's own simulator, as a contestant."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence

from torch import Tensor

from benchmarks.support.work import Work
from fedpatch.shared.tasks.task import Task
from fedpatch.simulator.experiment.simulation import Simulation
from fedpatch.simulator.learners.cohort_training import InProcess, make_learner
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.protocols import Cohort, CohortMember
from fedpatch.simulator.learners.worker_pool import Workers


class FedpatchRounds:
    """Rounds of a simulation over `workers` processes, with user accuracy measured only if `with_accuracy`.

    The other contestants measure no accuracy either: a round is selection, training, aggregation and transfer of the new
    model.
    """

    def __init__(self, work: Work, *, workers: int = 1, with_accuracy: bool = False) -> None:
        before = {process.pid for process in multiprocessing.active_children()}

        def make_cohort(task: Task, context: LearnerContext) -> Cohort:
            cohort = (
                InProcess(make_learner(task, context))
                if workers == 1
                else Workers(context.study.task, context, workers)
            )
            return cohort if with_accuracy else _Unmeasured(cohort)

        self.simulation = Simulation(work.study, work.task, work.population, make_cohort)
        begun = {process.pid for process in multiprocessing.active_children()} - before
        self._pids = [os.getpid(), *(pid for pid in begun if pid is not None)]
        self.simulation.step()  # round 0, which trains no client

    def play(self) -> float | None:
        """Run the next round; return its mean training loss."""
        return self.simulation.step().train_loss

    def pids(self) -> list[int]:
        """Return this process and the workers."""
        return self._pids

    def close(self) -> None:
        """End the workers."""
        self.simulation.close()


class _Unmeasured:
    """A cohort with the accuracy 0 for all clients."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        self._cohort.begin(tensors)

    def measure(self, clients: Sequence[int]) -> list[float]:
        return [0.0] * len(clients)

    def train(self, members: Sequence[CohortMember]) -> tuple[dict[str, Tensor], list[float]]:
        return self._cohort.train(members)

    def close(self) -> None:
        self._cohort.close()
