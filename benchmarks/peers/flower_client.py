"""A Flower client that trains one partition. It is a module of its own, so Ray's processes import it and keep its cache."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from benchmarks.peers.work import PeerWork, read_work

FOLDER = "FEDPATCH_BENCHMARK_WORK"

app = ClientApp()


@cache
def resident() -> tuple[PeerWork, nn.Module]:
    """Return data and model, loaded once per process: faster than in Flower's own examples."""
    torch.set_num_threads(1)
    work = read_work(Path(os.environ[FOLDER]))
    return work, work.build_model()


@app.train()  # type: ignore[untyped-decorator]  # flwr has no types where mypy runs
def train(message: Message, context: Context) -> Any:
    """Train one client; batches are consecutive, the cheapest choice."""
    work, model = resident()
    client = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
    x, y = work.of(client)
    loss_sum = torch.zeros(())
    for step in range(work.steps[client]):
        start = step * work.batch_size % len(x)
        part = slice(start, start + work.batch_size)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[part]), y[part])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss_sum += loss.detach()
    metrics = MetricRecord({"num-examples": len(x), "loss": float(loss_sum) / work.steps[client]})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
