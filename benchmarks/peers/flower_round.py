"""Rounds of FedAvg in Flower's simulation: `python -m benchmarks.peers.flower_round FOLDER [PROCESSES]`.

The simulation runs clients in PROCESSES actors of Ray with one CPU each. Everything is federated: Flower has no private
patches. The server polls replies every 0.1 s, its default.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.flower_simulation import FOREVER, StdinEnded, play
from benchmarks.peers.work import PeerWork, read_work, say, wait_for_go


def make_server(work: PeerWork) -> Any:
    """Return a server that runs rounds with all clients until stdin ends."""
    from flwr.app import ArrayRecord, Context, MetricRecord
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    server = ServerApp()
    losses: list[float] = []

    def remember(replies: list[Any], key: str) -> Any:
        records = [next(iter(reply.metric_records.values())) for reply in replies]
        examples = sum(record[key] for record in records)
        losses.append(sum(record[key] * record["loss"] for record in records) / examples)
        return MetricRecord({"loss": losses[-1]})

    def take_turn(server_round: int, arrays: Any) -> None:
        """Wait for the next line; Flower calls this before the first round and after each. The first round warms up."""
        if server_round == 0:
            return
        say(losses[-1] if server_round > 1 else "ready")
        if not wait_for_go():
            raise StdinEnded

    @server.main()  # type: ignore[untyped-decorator]  # flwr has no types where mypy runs
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=work.clients,
            min_available_nodes=work.clients,
            train_metrics_aggr_fn=remember,
        )
        arrays = ArrayRecord(work.build_model().state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=FOREVER, evaluate_fn=take_turn)

    return server


def main() -> None:
    """Run rounds until stdin ends."""
    folder, processes = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    from benchmarks.peers import flower_client

    os.environ[flower_client.FOLDER] = str(folder.resolve())
    work = read_work(folder)
    play(make_server(work), flower_client.app, work.clients, processes)


if __name__ == "__main__":
    main()
