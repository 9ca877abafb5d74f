"""Methods of personalisation in PFLlib and in fedpatch, on the same split, initial model and steps.

    git clone https://github.com/TsingZ0/PFLlib
    FEDPATCH_DATA=... python -m benchmarks.peers.pfllib_methods --pfllib PFLlib --out results/personalisation/pfllib.json

needs an environment with fedpatch and PFLlib's imports: h5py, ujson, scikit-learn, matplotlib. PFLlib's own code makes the
split (`separate_data`, practical label skew: Dirichlet 0.1) and runs its servers and clients; only its files are replaced by
arrays in memory. Each side draws its own batches, so figures agree within the noise of a seed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn

from benchmarks.support.programs import checkout_commit
from fedpatch.shared.app.command import command, run_app, say
from fedpatch.shared.app.provenance import processor_name, source_commit
from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy
from fedpatch.shared.tasks.bundled.mnist import load_data
from fedpatch.shared.tasks.task import DeviceData, Task, data_root
from fedpatch.simulator.comparison.methods import Method, parse_methods
from fedpatch.simulator.experiment.cell_file import CellFile
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

PFLLIB, FEDPATCH = SIDES = ("PFLlib", "fedpatch")
MU = 0.1
SERVERS = {
    "fedavg": ("serveravg", "FedAvg"),
    "fedprox:0.1": ("serverprox", "FedProx"),
    "fedper": ("serverper", "FedPer"),
    "fedrep:1": ("serverrep", "FedRep"),
    "fedbabu": ("serverbabu", "FedBABU"),
    "ditto:0.1": ("serverditto", "Ditto"),
}
"""PFLlib's module and class for each method; lambda of Ditto and mu of FedProx are MU, FedRep's head has one epoch."""
CLASSES, ALPHA = 10, 0.1

Split = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Terms:
    """The terms that both sides share.

    Attributes:
        clients: Number of clients; all take part in each round.
        images: Images of MNIST that are split over the clients; a quarter of a client's images is for testing.
        rounds: Rounds.
        batch_size: Images in a minibatch; the training images of a client are a multiple of it.
        learning_rate: Learning rate of SGD.
    """

    clients: int = 20
    images: int = 7_000
    rounds: int = 30
    batch_size: int = 10
    learning_rate: float = 0.05


@dataclass(frozen=True)
class PeerCell:
    """One method with one seed on one side.

    Attributes:
        method: The method, as in `fedpatch simulate compare`.
        side: One of SIDES.
        seed: The seed.
        accuracy: Share of all test images that their clients' models classify correctly, PFLlib's metric.
        mean: Mean user accuracy over clients.
        origin: Commit and processor.
    """

    method: str
    side: str
    seed: int
    accuracy: float
    mean: float
    origin: dict[str, str | None] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int]:
        """The terms that identify a cell."""
        return self.method, self.side, self.seed


class TwoLayers(nn.Module):
    """784 -> FC 100 -> ReLU -> FC 10; the head is called `fc`, as PFLlib requires."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc = nn.Linear(784, 100), nn.Linear(100, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (n, 10), of images, shape (n, 784)."""
        logits: Tensor = self.fc(torch.relu(self.fc1(x)))
        return logits


def split_of(terms: Terms, seed: int) -> Split:
    """Return train_x, train_y, test_x and test_y of each client, by PFLlib's own functions."""
    with contextlib.redirect_stdout(io.StringIO()):
        tools = import_module("dataset_utils")
        whole = load_data("shard:0/1", data_root())
        x, y = np.concatenate([whole.train_x, whole.test_x]), np.concatenate([whole.train_y, whole.test_y])
        chosen = np.random.default_rng(seed).permutation(len(x))[: terms.images]
        np.random.seed(seed)  # noqa: NPY002  # PFLlib draws from numpy's global state
        own = tools.separate_data((x[chosen], y[chosen]), terms.clients, CLASSES, True, False, "dir", 2)
        train, test = tools.split_data(*own[:2])
    clients = []
    for one, other in zip(train, test, strict=True):
        kept = len(one["y"]) // terms.batch_size * terms.batch_size
        parts = {"train_x": one["x"][:kept], "train_y": one["y"][:kept], "test_x": other["x"], "test_y": other["y"]}
        clients.append({name: np.array(values) for name, values in parts.items()})
    return clients


def play_pfllib(method: str, split: Split, initial: nn.Module, terms: Terms, seed: int) -> list[float]:
    """Return the accuracy of each client after the last round, by PFLlib's server and clients."""
    module, name = SERVERS[method]
    head = method.partition(":")[0] in ("fedper", "fedrep", "fedbabu")
    arguments = SimpleNamespace(
        model=copy.deepcopy(initial), device="cpu", dataset="", num_classes=CLASSES, global_rounds=terms.rounds,
        local_epochs=1, batch_size=terms.batch_size, local_learning_rate=terms.learning_rate, num_clients=terms.clients,
        join_ratio=1.0, random_join_ratio=False, few_shot=0, time_select=False, goal="", time_threthold=1e9,
        save_folder_name="", top_cnt=100, auto_break=False, algorithm=name, eval_gap=terms.rounds, client_drop_rate=0.0,
        train_slow_rate=0.0, send_slow_rate=0.0, dlg_eval=False, dlg_gap=1, batch_num_per_client=1, num_new_clients=0,
        fine_tuning_epoch_new=0, fine_tuning_epochs=0, learning_rate_decay=False, learning_rate_decay_gamma=1.0,
        plocal_epochs=1, mu=MU,
    )  # fmt: skip
    if head:
        parts = import_module("flcore.trainmodel.models")
        arguments.head = copy.deepcopy(arguments.model.fc)
        arguments.model.fc = nn.Identity()
        arguments.model = parts.BaseHeadSplit(arguments.model, arguments.head)
    reader: Any = import_module("utils.data_utils")
    reader.read_data = lambda _, client, is_train=True: _part(split[client], "train" if is_train else "test")
    found: list[list[float]] = []
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        server = getattr(import_module(f"flcore.servers.{module}"), name)(arguments, 0)
        server.save_results = server.save_global_model = lambda: None
        server.evaluate = partial(_measure, server, found, "test_metrics")
        if name == "Ditto":
            server.evaluate = partial(server.rs_test_acc.append, 0.0)
            server.evaluate_personalized = partial(_measure, server, found, "test_metrics_personalized")
        torch.manual_seed(seed)
        server.train()
    return found[1]  # after the last round, before PFLlib's final training


def _part(data: Mapping[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    return {"x": data[f"{part}_x"], "y": data[f"{part}_y"]}


def _measure(server: Any, found: list[list[float]], metrics: str) -> None:
    _, counts, correct, *_ = getattr(server, metrics)()
    found.append([right / count for right, count in zip(correct, counts, strict=True)])
    server.rs_test_acc.append(0.0)


def play_fedpatch(method: Method, split: Split, initial: nn.Module, terms: Terms, seed: int) -> list[float]:
    """Return the accuracy of each client after the last round, by our simulator."""
    task = Task(
        "pfllib",
        "two layers on MNIST, split by PFLlib",
        partial(copy.deepcopy, initial),
        lambda spec, _: DeviceData(**dict[str, Any](split[int(spec)])),
        cross_entropy,
        accuracy,
        batch_size=terms.batch_size,
        simulation_data="{index}",
        validation_share=0.0,  # PFLlib trains on all training images
        head=("fc.*",),
    )
    study = make_study(
        task=task,
        task_ref=task.name,
        clients=terms.clients,
        rounds=terms.rounds,
        learning_rate=terms.learning_rate,
        seed=seed,
        **method.study_terms("fedavg") | {"finish": ""},  # PFLlib is also measured before its last training
    )
    measured: dict[int, float] = {}
    simulate(study, task=task, on_end=measured.update)
    return [measured[client] for client in range(terms.clients)]


@command(app, "pfllib_methods", example="python -m benchmarks.peers.pfllib_methods --pfllib PFLlib --out pfllib.json")
def compare_methods(
    pfllib: Annotated[Path, typer.Option(metavar="DIR", help="Checkout of PFLlib.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for all figures; a repeated command goes on with it.")
    ],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0 on.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds.")] = 30,
) -> None:
    """FedAvg, FedProx, FedPer, FedRep, FedBABU (without its last training) and Ditto of PFLlib beside ours."""
    folder, terms = pfllib.resolve(), Terms(rounds=rounds)
    sys.path[:0] = [str(folder / "system"), str(folder / "dataset" / "utils")]
    about = {**asdict(terms), "pfllib": checkout_commit(folder), "mu": MU, "alpha": ALPHA}
    table = CellFile(out, about, PeerCell, "benchmarks.peers.pfllib_methods")
    origin = {"commit": source_commit(), "processor": processor_name()}
    for seed in range(seeds):
        split = split_of(terms, seed)
        torch.manual_seed(seed)
        initial = TwoLayers()
        for name in SERVERS:
            for side in SIDES:
                if (name, side, seed) in table.cells:
                    continue
                say(f"{name}, {side}, seed {seed}")
                found = (
                    play_pfllib(name, split, initial, terms, seed)
                    if side == PFLLIB
                    else play_fedpatch(parse_methods(name)[0], split, initial, terms, seed)
                )
                counts = [len(client["test_y"]) for client in split]
                table.add(
                    PeerCell(name, side, seed, float(np.average(found, weights=counts)), float(np.mean(found)), origin)
                )


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.peers.pfllib_methods")
