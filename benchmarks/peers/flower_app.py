"""A Flower app without training: every client answers with the arrays that it received.

flower_deployment copies this file into an app's folder, and Flower's own processes run it. After each round the server waits
at a Unix socket for the request of another.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

FOREVER = 1_000_000

client = ClientApp()
server = ServerApp()


@client.train()  # type: ignore[untyped-decorator]  # flwr has no types where mypy runs
def train(message: Message, context: Context) -> Any:
    """Return the arrays at once."""
    arrays = ArrayRecord(message.content["arrays"].to_numpy_ndarrays())
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 600})})
    return Message(content=content, reply_to=message)


@server.main()  # type: ignore[untyped-decorator]  # flwr has no types where mypy runs
def serve(grid: Grid, context: Context) -> None:
    """Run rounds with all clients until the reader of the socket disconnects."""
    terms = json.loads(Path(str(context.run_config["terms"])).read_text("utf-8"))
    with socket.socket(socket.AF_UNIX) as gate:
        gate.connect(terms["gate"])
        lines = gate.makefile("rw")

        def take_turn(server_round: int, arrays: Any) -> None:
            """Wait for the next request; Flower calls this before the first round and after each."""
            if server_round == 0:
                return
            lines.write(f"{server_round}\n")
            lines.flush()
            if not lines.readline():
                raise EOFError("no further round is wanted")

        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=terms["clients"],
            min_available_nodes=terms["clients"],
        )
        shapes = terms["shapes"].values()
        arrays = ArrayRecord([np.zeros(shape, np.float32) for shape in shapes])
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=FOREVER, evaluate_fn=take_turn, timeout=600.0)
