"""A simulation over the ranks of a torch.distributed group: processes of one machine or of many.

    torchrun --nproc-per-node 2 -m fedpatch simulate --task digits --clients 100

Each rank runs the whole simulation. Only training and measuring are divided: a rank has consecutive chunks of
`simulator.learners.cohort_training`. Then the ranks exchange losses and patches, and each rank in turn adds the sums
of its chunks to the total of the ranks before it. So the sums are added in the order of the chunks: any number of ranks gives
the bits of one process, and the network carries one vector per rank. The model and the decision to stop come from rank 0,
because another processor may round the same sum to other bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from fedpatch.shared.errors import FedpatchError, UsageError
from fedpatch.simulator.learners.cohort_training import chunks_of, train_chunk
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.norm_bounded_learner import file_of_update
from fedpatch.simulator.learners.protocols import CohortMember, Learner
from fedpatch.simulator.learners.worker_pool import error_fields, raise_error
from fedpatch.simulator.spec.compute import rank_count, rank_number

T = TypeVar("T")

SILENCE_S = 600.0
"""A rank that does not answer for so long is lost. A chunk takes less time than this."""


class Ranks:
    """The group of ranks that this process belongs to.

    Attributes:
        number: The number of this rank, from 0.
        count: The number of ranks.

    Example:
        >>> ONE_RANK.number, ONE_RANK.agree(lambda: "stop")
        (0, 'stop')
    """

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number, self.count = number, count

    @property
    def first(self) -> bool:
        """True if this is rank 0, which prints and writes the files."""
        return self.number == 0

    def agree(self, decide: Callable[[], T], source: int = 0) -> T:
        """Return the result of `decide()` on the rank `source`; the other ranks do not call it.

        An error of `decide` is raised on that rank, and ends the others without a message.

        Raises:
            FedpatchError: A rank is lost.
        """
        if self.count == 1:
            return decide()
        problem: BaseException | None = None
        held: list[Any] = [None, False]
        if self.number == source:
            try:
                held[0] = decide()
            except BaseException as error:
                problem, held[1] = error, True
        with _lost_ranks():
            dist.broadcast_object_list(held, src=source)
        if problem is not None:
            raise problem
        if held[1]:
            raise SystemExit(1)
        return cast("T", held[0])

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of their numbers. Raises FedpatchError if a rank is lost."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        with _lost_ranks():
            dist.all_gather_object(found, value)
        return cast("list[T]", found)

    def send(self, values: Tensor, source: int) -> None:
        """Fill the contiguous `values` with those of the rank `source`. Raises FedpatchError if a rank is lost."""
        if self.count > 1 and values.numel():
            with _lost_ranks():
                dist.broadcast(values, src=source)


ONE_RANK = Ranks()


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the group that torchrun or another launcher names in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Yields:
        The group; `ONE_RANK` if no launcher started this process.

    Raises:
        UsageError: A variable is missing, or the ranks do not find each other.
    """
    if rank_count() == 1:
        yield ONE_RANK
        return
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=SILENCE_S))
    except (ValueError, RuntimeError) as error:
        place = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise UsageError(
            f"rank {rank_number()} of {rank_count()} cannot join the others at {place}: {_first_line(error)}"
        ) from error
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


class RankedCohort:
    """A cohort that is trained by all ranks; see Cohort.

    Args:
        learner: This rank's learner.
        context: The context of the learner, whose patches the ranks exchange.
        ranks: The group.
    """

    def __init__(self, learner: Learner, context: LearnerContext, ranks: Ranks) -> None:
        self.learner = learner
        self._ranks, self._folder = ranks, context.spool
        self._by_client = list(context.patches.values.values())
        if context.uplink is not None:
            self._by_client.append(context.uplink.sizes)

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model of the round from rank 0."""
        model = {name: value.contiguous().clone() for name, value in tensors.items()}
        for value in model.values():
            self._ranks.send(value, 0)
        self.learner.begin(model)

    def measure(self, clients: Sequence[int]) -> list[float]:
        """Return the user accuracy of each client."""
        own, count = self._ranks.number, self._ranks.count
        parts = self._together(lambda: [self.learner.measure(client) for client in clients[own::count]])
        return [parts[place % count][place // count] for place in range(len(clients))]

    def train(self, members: Sequence[CohortMember]) -> tuple[dict[str, Tensor], list[float]]:
        """Return the weighted mean of the members' updates, and their losses."""
        chunks, count = chunks_of(members), self._ranks.count
        parts = [chunks[rank * len(chunks) // count : (rank + 1) * len(chunks) // count] for rank in range(count)]
        sums: list[Tensor] = []

        def play() -> list[float]:
            losses = []
            for chunk in parts[self._ranks.number]:
                losses += train_chunk(self.learner, chunk)
                sums.append(self.learner.result())
            return losses

        losses = [loss for part in self._together(play) for loss in part]
        for rank, part in enumerate(parts):
            self._exchange_clients([one.client for chunk in part for one in chunk], rank)
        return self.learner.tensors_of(self._total(sums)), losses

    def close(self) -> None:
        """Do nothing: the launcher ends the ranks."""

    def _together(self, work: Callable[[], T]) -> list[T]:
        """Do `work` on every rank, and return the results by rank. An error on one rank ends all ranks."""
        result: T | None = None
        problem = None
        try:
            result = work()
        except Exception as error:  # every rank must reach `gather`
            problem = error_fields(error)
        found = self._ranks.gather((result, problem))
        failed = [fields for _, fields in found if fields is not None]
        if failed and not (self._ranks.first or problem):
            raise SystemExit(1)  # only rank 0 and the failed rank print the message
        if failed:
            raise_error(*(problem or failed[0]))
        return [cast("T", result) for result, _ in found]

    def _total(self, sums: Sequence[Tensor]) -> Tensor:
        """Return the sum of the chunks of all ranks, added in their order; `sums` are this rank's."""
        total = torch.full_like(sums[0] if sums else self.learner.result(), -0.0)  # -0.0 + x has the bits of x
        for rank in range(self._ranks.count):
            if rank == self._ranks.number:
                for part in sums:
                    total += part
            self._ranks.send(total, rank)
        return total

    def _exchange_clients(self, clients: Sequence[int], source: int) -> None:
        """Take patches, sizes of updates and files of these clients from the rank that trained them."""
        if not clients:
            return
        for block in self._by_client:
            rows = block[list(clients)].contiguous()
            self._ranks.send(rows, source)
            block[list(clients)] = rows
        if self._folder is None:
            return
        for client in clients:
            path = file_of_update(self._folder, client)
            packed = self._ranks.agree(path.read_bytes, source)
            if self._ranks.number != source:
                path.write_bytes(packed)


@contextmanager
def _lost_ranks() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise FedpatchError(
            "another rank of the simulation is lost: the launcher's messages name it; with --out the same command continues "
            "after the last saved round"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
