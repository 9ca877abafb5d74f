"""Growth of a round's time and memory with the number of clients, on the synthetic task.

A process of its own measures each number of clients, so that its memory is of this study alone. This process is
`python -m benchmarks.device.growth CLIENTS COHORT ROUNDS`; it prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass

import typer

from benchmarks.device.process_memory import memory_bytes

TASK = "benchmarks.support.synthetic_task:TASK"


@dataclass(frozen=True)
class Size:
    """Cost of a study of `clients` clients, of which `cohort` are in each round.

    `round_s` is the median of the rounds, with user accuracy measured for the cohort as in any simulation. `peak_bytes` is
    the greatest resident memory, reached while the data are put together; `resident_bytes` is the resident memory at the
    end, without freed memory. `own_bytes` is the memory of each client in fedpatch: its examples and its patch.
    """

    clients: int
    cohort: int
    steps: int
    load_s: float
    round_s: float
    peak_bytes: int
    resident_bytes: int
    own_bytes: int

    @property
    def s_per_client_step(self) -> float:
        """Seconds for one step of one client, including all other work of the round."""
        return self.round_s / self.steps


def measure_size(clients: int, cohort: int, rounds: int) -> Size:
    """Measure `rounds` rounds after one warm-up round."""
    import torch

    from benchmarks.support.work import make_work
    from benchmarks.training.fedpatch_rounds import FedpatchRounds

    torch.set_num_threads(1)
    began = time.perf_counter()
    work = make_work(TASK, clients, participation=cohort / clients)
    contestant = FedpatchRounds(work, with_accuracy=True)
    load_s = time.perf_counter() - began
    contestant.play()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        contestant.play()
        seconds.append(time.perf_counter() - began)
    ctypes.CDLL(None).malloc_trim(0)  # else memory that glibc keeps after loading would count as resident
    data = work.population
    blocks = (data.train_x, data.train_y, data.test_x, data.test_y)
    data_bytes = sum(block.numel() * block.element_size() for block in blocks)
    return Size(
        clients=clients,
        cohort=cohort,
        steps=work.steps[0] * cohort,
        load_s=load_s,
        round_s=statistics.median(seconds),
        peak_bytes=memory_bytes("VmHWM"),
        resident_bytes=memory_bytes("VmRSS"),
        own_bytes=data_bytes // clients + contestant.simulation.patches.nbytes_per_client,
    )


if __name__ == "__main__":
    typer.echo(json.dumps(asdict(measure_size(*map(int, sys.argv[1:4])))))
