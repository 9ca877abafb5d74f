"""A device that learns alone: `python -m benchmarks.testbed.alone TASK DATA ROUNDS SEED`, for the testbed's "Independent".

It prints `ready` when its data are loaded, begins after a line on its standard input, and prints the seconds of each round.
A round has the same passes over the data and measurements of user accuracy as in a federation, but no messages.
"""

from __future__ import annotations

import sys
import time

import typer

from fedpatch.coordinator.strategies.fedavg import FedAvg
from fedpatch.device_agent.training.batches import stream_seed
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.tasks.task import data_root, find_task
from fedpatch.shared.tasks.torch_model import initial_tensors


def main() -> None:
    """Train for ROUNDS rounds."""
    import torch

    reference, data, rounds, number = sys.argv[1:]
    seed = int(number)
    torch.set_num_threads(1)
    task = find_task(reference)
    trainer = LocalTrainer(task, task.load_data(data, data_root()))
    plan = FedAvg().plan(task.learning_rates["fedavg"], task.batch_size, 1, 0, 0)
    tensors, batches = initial_tensors(task, seed), 0
    typer.echo("ready")
    sys.stdin.readline()
    for _ in range(int(rounds)):
        began = time.perf_counter()
        result = trainer.run(
            tensors,
            plan,
            first_batch=batches,
            stream_seed=stream_seed(seed, data),
            on_step=lambda *_: None,
            cancelled=lambda: False,
        )
        assert result is not None
        tensors, batches = result.tensors, batches + result.steps
        typer.echo(f"{time.perf_counter() - began:.4f}")


if __name__ == "__main__":
    main()
