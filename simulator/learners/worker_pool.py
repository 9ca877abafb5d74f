"""A cohort trained by several processes, each with one torch thread: two threads are no faster for small products.

Data, patches, the round's model and the sums are in shared memory; the queues carry only numbers.
"""

from __future__ import annotations

import queue
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.multiprocessing as mp
from torch import Tensor

from fedpatch.shared.errors import DataError, FedpatchError, SchemaMismatch, UpdateRefused, UsageError
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.clients.patches import shared_zeros
from fedpatch.simulator.learners.cohort_training import CHUNKS, chunks_of, make_learner, train_chunk
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.protocols import CohortMember, Learner

POLL_S = 1.0
ORPHAN_CHECK_S = 5.0
MEASURED_AT_ONCE = 32
_COME_WHOLE = {one.__name__: one for one in (DataError, SchemaMismatch, UsageError)}


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Prevent new processes from importing the program's script, which would start the simulation again in each of them."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


class Workers:
    """A cohort trained by `count` worker processes; InProcess is the same without workers."""

    def __init__(self, task_ref: str, context: LearnerContext, count: int) -> None:
        self._task = find_task(task_ref)
        self.learner = make_learner(self._task, context)
        self._model = {
            spec.name: shared_zeros(spec.shape, getattr(torch, spec.dtype)) for spec in context.travelling.specs
        }
        self.learner.begin(self._model)
        size = len(self.learner.result())
        self._sums = shared_zeros((CHUNKS, size), torch.float64)
        spawning = mp.get_context("spawn")
        self._todo, self._done = spawning.Queue(), spawning.Queue()
        self._round = 0
        self._processes = [
            spawning.Process(
                target=_work,
                args=(task_ref, context, self._model, self._sums, self._todo, self._done),
                name=f"fedpatch-simulate-{number}",
                daemon=True,
            )
            for number in range(count)
        ]
        with _script_hidden():
            for process in self._processes:
                process.start()

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model of the round."""
        for name, value in self._model.items():
            value.copy_(tensors[name])
        self._round += 1

    def measure(self, clients: Sequence[int]) -> list[float]:
        """Return the user accuracy of each client."""
        parts = [clients[at : at + MEASURED_AT_ONCE] for at in range(0, len(clients), MEASURED_AT_ONCE)]
        return [value for part in self._share("measure", parts) for value in part]

    def train(self, members: Sequence[CohortMember]) -> tuple[dict[str, Tensor], list[float]]:
        """Return the weighted mean of the members' updates, and their losses."""
        chunks = chunks_of(members)
        losses = [loss for part in self._share("train", chunks) for loss in part]
        total = self._sums[0].clone()
        for part in self._sums[1 : len(chunks)]:
            total += part
        return self.learner.tensors_of(total), losses

    def close(self) -> None:
        """End the processes; unfinished work is lost."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for one in (self._todo, self._done):
            one.close()
            one.cancel_join_thread()

    def _share(self, what: str, parts: Sequence[Any]) -> list[list[float]]:
        self._check_alive()  # else a worker that died idle is not noticed: the others do all the work
        for number, part in enumerate(parts):
            self._todo.put((what, self._round, number, part))
        results: dict[int, list[float]] = {}
        while len(results) < len(parts):
            number, values, problem = self._next()
            if problem is not None:
                raise_error(*problem)
            results[number] = values
        return [results[number] for number in range(len(parts))]

    def _next(self) -> Any:
        while True:
            try:
                return self._done.get(timeout=POLL_S)
            except queue.Empty:
                self._check_alive()

    def _check_alive(self) -> None:
        for process in self._processes:
            if process.exitcode is not None:
                raise FedpatchError(
                    f"a worker process ended with exit code {process.exitcode}; if memory ran out "
                    "(-9), use fewer --workers"
                )


def _work(
    task_ref: str, context: LearnerContext, model: Mapping[str, Tensor], sums: Tensor, todo: Any, done: Any
) -> None:  # pragma: no cover - runs in another process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends the workers
    done.cancel_join_thread()  # else a full pipe without a reader would block forever
    torch.set_num_threads(1)
    learner = make_learner(find_task(task_ref), context)
    begun = 0
    while (job := _next_job(todo)) is not None:
        what, number_of_round, number, part = job
        try:
            if number_of_round != begun:
                learner.begin(model)
                begun = number_of_round
            done.put((number, _do(learner, what, part, sums[number : number + 1]), None))
        except Exception as error:  # sent to the parent, which raises it
            begun = 0
            done.put((number, [], error_fields(error)))


def _next_job(todo: Any) -> Any:
    """Return the next job; None when the parent has ended for any reason."""
    while True:
        try:
            return todo.get(timeout=ORPHAN_CHECK_S)
        except queue.Empty:
            parent = mp.parent_process()
            if parent is None or not parent.is_alive():
                return None


def _do(learner: Learner, what: str, part: Sequence[Any], place: Tensor) -> list[float]:
    if what == "measure":
        return [learner.measure(client) for client in part]
    losses = train_chunk(learner, part)
    place[0].copy_(learner.result())
    return losses


def error_fields(error: Exception) -> tuple[str, str, str]:
    """Return an error as text for `raise_error` in another process, because some exceptions cannot be pickled."""
    if isinstance(error, UpdateRefused):
        return "UpdateRefused", error.reason, str(error)
    kind = type(error).__name__
    return kind, "", str(error) if kind in _COME_WHOLE else f"{kind}: {error}"


def raise_error(kind: str, reason: str, text: str) -> NoReturn:
    """Raise the error of another process.

    Args:
        kind: Class of the error.
        reason: Reason of an UpdateRefused; empty for others.
        text: The message.

    Raises:
        UpdateRefused, DataError, SchemaMismatch, UsageError: As in the other process.
        FedpatchError: Any other error.
    """
    if kind == "UpdateRefused":
        raise UpdateRefused(reason, text)
    if kind in _COME_WHOLE:
        raise _COME_WHOLE[kind](text)
    raise FedpatchError(f"a worker process failed: {text}; --workers 1 --debug shows where")
