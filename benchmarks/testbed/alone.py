"""A device that learns alone: `python -m benchmarks.testbed_alone TASK DATA ROUNDS`, for the testbed's "Independent".

It says `ready` when its data are loaded, begins when a line comes on its standard input, and prints the seconds of each round:
the same passes over the data, and the same measuring of user accuracy, as in a round of a federation; no messages.
"""

from __future__ import annotations

import sys
import time

import typer

from coordinator.strategies import FedAvg
from device_agent.batches import stream_seed
from device_agent.training import LocalTrainer
from shared.model import initial_tensors
from shared.task import data_root, find_task


def main() -> None:
    """Trains for so many rounds."""
    import torch

    reference, data, rounds = sys.argv[1:]
    torch.set_num_threads(1)
    task = find_task(reference)
    trainer = LocalTrainer(task, task.load_data(data, data_root()))
    plan = FedAvg().plan(task.learning_rates["fedavg"], task.batch_size, 1, 0, 0)
    tensors, batches = initial_tensors(task, 0), 0
    typer.echo("ready")
    sys.stdin.readline()
    for _ in range(int(rounds)):
        began = time.perf_counter()
        result = trainer.run(
            tensors,
            plan,
            first_batch=batches,
            stream_seed=stream_seed(0, data),
            on_step=lambda *_: None,
            cancelled=lambda: False,
        )
        assert result is not None
        tensors, batches = result.tensors, batches + result.steps
        typer.echo(f"{time.perf_counter() - began:.4f}")


if __name__ == "__main__":
    main()
