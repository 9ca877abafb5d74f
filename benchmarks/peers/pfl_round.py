"""Rounds of FedAvg in pfl's simulator: `python -m benchmarks.peers.pfl_round FOLDER [PROCESSES]`.

pfl keeps one model in memory, copies the global values in for each client, and sums differences. It has no private patches,
so gamma and beta are federated too; it does not aggregate running statistics. With two processes it splits the cohort and
adds the sums up with torch.distributed, as its documentation describes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.work import PeerWork, read_work, say, wait_for_go

FOREVER = 1_000_000
RANK = "PFL_WORKER_RANK"
ADDRESSES = "PFL_WORKER_ADDRESSES"


class LossModel(nn.Module):
    """The model with the two methods that pfl requires."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self._losses = torch.zeros(())
        self._steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of one batch."""
        self.train()
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self._losses += loss.detach()
        self._steps += 1
        return loss

    def mean_loss(self) -> float:
        """Return the mean loss over the steps of this process since the last call."""
        mean = float(self._losses) / self._steps
        self._losses, self._steps = torch.zeros(()), 0
        return mean

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return the metrics; pfl calls this only for an evaluation, which is before the first round."""
        from pfl.metrics import Weighted

        with torch.no_grad():
            return {"loss": Weighted(float(nn.functional.cross_entropy(self.layers(x), y)), 1)}


def _turns(layers: LossModel, followers: list[IO[str]]) -> Any:
    """Return pfl's callback after each round."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class Turns(TrainingProcessCallback):  # type: ignore[misc]  # pfl has no types where mypy runs
        """Waits after each round."""

        def after_central_iteration(self, *args: Any, central_iteration: int, **kwargs: Any) -> tuple[bool, Any]:
            if os.environ.get(RANK, "0") == "0":
                say(layers.mean_loss() if central_iteration else "ready")
            more = wait_for_go()
            for follower in followers:
                if more:
                    follower.write("\n")
                    follower.flush()
                else:
                    follower.close()
            return not more, Metrics()

    return Turns()


def run(work: PeerWork, followers: list[IO[str]]) -> None:
    """Run rounds until stdin ends; `followers` receive each line of stdin too."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    layers = LossModel(work.build_model())
    np.random.seed(0)  # noqa: NPY002  # pfl draws from numpy's global state, which must be equal in all its processes
    sampler = get_user_sampler("minimize_reuse", list(range(work.clients)))
    users = FederatedDataset(lambda client: PyTorchTensorDataset(work.of(client), user_id=str(client)), sampler)
    params = NNAlgorithmParams(
        central_num_iterations=FOREVER,
        evaluation_frequency=FOREVER,
        train_cohort_size=work.clients,
        val_cohort_size=None,
    )
    training = NNTrainHyperParams(
        local_batch_size=work.batch_size,
        local_num_epochs=None,
        local_num_steps=work.steps[0],
        local_learning_rate=work.learning_rate,
    )
    FederatedAveraging().run(
        params,
        SimulatedBackend(training_data=users, val_data=users),
        PyTorchModel(layers, torch.optim.SGD, torch.optim.SGD(layers.parameters(), lr=1.0)),
        training,
        callbacks=[_turns(layers, followers)],
        send_metrics_to_platform=False,
    )


def main() -> None:
    """Run the leading process, which starts the other processes; these follow it."""
    folder, processes = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.set_num_threads(1)
    followers: list[IO[str]] = []
    if processes > 1 and RANK not in os.environ:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ[ADDRESSES] = ",".join(f"127.0.0.1:{port}" for _ in range(processes))
        for rank in range(1, processes):
            follower = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.peers.pfl_round", *sys.argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                env={**os.environ, RANK: str(rank)},
            )
            assert follower.stdin is not None
            followers.append(follower.stdin)
        os.environ[RANK] = "0"
    run(read_work(folder), followers)


if __name__ == "__main__":
    main()
