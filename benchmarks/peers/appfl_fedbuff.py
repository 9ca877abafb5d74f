"""APPFL's FedBuff on the updates of our simulated fleet, beside carried work: same devices, speeds, absences and training.

    python -m benchmarks.peers.appfl_fedbuff --out results/benchmarks/buffered-rounds-appfl.json

needs an environment with fedpatch, APPFL and the packages that APPFL imports (pip install appfl). Our engine decides which ten
updates make a version; APPFL's FedBuffAggregator makes the model of them. Its step is alpha / num_clients per update. So it
runs with its default alpha of 0.9, and with the alpha with which ten fresh updates make a whole step, with its polynomial
staleness function.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import typer

from benchmarks.support.documents import Document, Out, deliver, kept, read_document
from benchmarks.support.report import begun
from benchmarks.training.buffered_rounds import CONTESTS, FLEET, POLICIES, SEEDS, play, tables
from fedpatch.coordinator.aggregation.rebased_updates import Staleness
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.tensors.arrays import Array
from fedpatch.simulator.fleet.learning import FleetLearning
from fedpatch.simulator.fleet.settings import FleetTerms

BENCHMARK = "appfl_fedbuff"
OURS = "carry, 10 updates"
UPDATES = POLICIES[OURS]["quorum_updates"]
WHOLE_STEP = FLEET["devices"] / UPDATES
ALPHAS: dict[str, dict[str, Any]] = {
    "APPFL FedBuff, default": {"alpha": 0.9},
    "APPFL FedBuff, whole step": {
        "alpha": WHOLE_STEP,
        "staleness_fn": "polynomial",
        "staleness_fn_kwargs": {"a": 0.5},
    },
}
"""Settings of APPFL's aggregator by policy."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class AppflLearning(FleetLearning):
    """The training of a fleet whose models APPFL makes.

    Args:
        settings: Settings of APPFL's aggregator.
        terms: The study.
    """

    def __init__(self, settings: Mapping[str, Any], terms: FleetTerms) -> None:
        from appfl.algorithm.aggregator import FedBuffAggregator
        from omegaconf import DictConfig

        super().__init__(terms)
        # `optimize_memory` would collect garbage at every update.
        own = {"K": UPDATES, "num_clients": terms.devices, "optimize_memory": False}
        self._peer = FedBuffAggregator(aggregator_configs=DictConfig({**settings, **own}))

    def next_state(
        self,
        server: ServerState,
        counts: Mapping[str, int],
        updates: Mapping[str, dict[str, Array]],
        stale: Mapping[str, Staleness],
    ) -> ServerState:
        """Return the state with APPFL's model. APPFL's buffer takes all updates of the version, which may be more than ten."""
        peer = self._peer
        if peer.global_state is None:
            peer.global_state = {name: torch.from_numpy(value.copy()) for name, value in server.tensors.items()}
        peer.K = len(counts)
        for device in counts:
            peer.client_step[device] = peer.global_step - (stale[device].versions if device in stale else 0)
            peer.aggregate(device, {name: torch.from_numpy(value) for name, value in updates[device].items()})
        tensors = {name: value.numpy().astype(server.tensors[name].dtype) for name, value in peer.global_state.items()}
        return ServerState(server.round + 1, tensors, server.server)


@command(app, BENCHMARK, example="python -m benchmarks.peers.appfl_fedbuff --out appfl.json")
def appfl_fedbuff(out: Out = None, as_json: AsJson = False) -> None:
    """Time to a user accuracy with APPFL's FedBuff, and with carried work, on task digits."""
    document: Document = begun(BENCHMARK, 1)
    known = read_document(out, BENCHMARK)["runs"] if out is not None and out.exists() else []
    runs = {(run["policy"], run["seed"]): run for run in known}
    [contest] = [one for one in CONTESTS if one.task == "digits"]
    for seed in SEEDS:
        for policy in (OURS, *ALPHAS):
            if (policy, seed) not in runs:
                learn = partial(AppflLearning, ALPHAS[policy]) if policy in ALPHAS else FleetLearning
                runs[policy, seed] = play(contest, policy, seed, POLICIES[OURS], learn)
                kept(document | {"runs": list(runs.values())}, out)
    deliver(document | {"runs": list(runs.values())}, tables, out, as_json)


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.peers.appfl_fedbuff")
