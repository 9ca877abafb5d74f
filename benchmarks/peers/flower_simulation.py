"""Rounds without training in Flower's simulation: `python -m benchmarks.peers.flower_simulation CLIENTS SHAPES PROCESSES`.

The clients of flower_app run in PROCESSES actors of Ray, in one machine's memory: no network, no process of their own. SHAPES
is JSON: the shapes of the model's tensors. After the first round, which warms the actors up, it runs a round for each line on
stdin.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # the default 15 would give all other processes priority

FOREVER = 1_000_000


class StdinEnded(Exception):
    """No further round is requested."""


def make_server(clients: int, shapes: dict[str, list[int]]) -> Any:
    """Return a ServerApp that runs rounds with all clients until stdin ends.

    Args:
        clients: Number of simulated clients, all of which take part in each round.
        shapes: Shape of each tensor of the model, by name.

    Returns:
        flwr.serverapp.ServerApp.
    """
    import numpy as np
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    server = ServerApp()

    def take_turn(server_round: int, arrays: Any) -> None:
        """Wait for the next line; Flower calls this before the first round and after each."""
        if server_round == 0:
            return
        sys.stdout.write(json.dumps({"round": server_round}) + "\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            raise StdinEnded

    @server.main()  # type: ignore[untyped-decorator]  # flwr has no types where mypy runs
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        arrays = ArrayRecord([np.zeros(shape, np.float32) for shape in shapes.values()])
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=FOREVER, evaluate_fn=take_turn)

    return server


def play(server: Any, client: Any, clients: int, processes: int) -> None:
    """Run rounds of a ServerApp with a ClientApp until the server raises StdinEnded.

    Args:
        server: flwr.serverapp.ServerApp.
        client: flwr.clientapp.ClientApp of every client.
        clients: Number of simulated clients.
        processes: Number of Ray's actors, each with one CPU.
    """
    from flwr.simulation import run_simulation

    try:
        run_simulation(
            server_app=server,
            client_app=client,
            num_supernodes=clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": processes, "include_dashboard": False, "log_to_driver": False},
            },
        )
    except StdinEnded:
        return


def main() -> None:
    """Run rounds until stdin ends."""
    clients, shapes, processes = int(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    from benchmarks.peers import flower_app

    play(make_server(clients, shapes), flower_app.client, clients, processes)


if __name__ == "__main__":
    main()
