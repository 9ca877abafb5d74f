"""int8 personal models beside fp32: size, time of a prediction, user accuracy, and the cost of quantisation.

    python -m benchmarks.training.int8_models --out results/benchmarks/int8-models.json

Each model is trained on the data of one device, exported, and quantised as by an agent with `keep_int8`; measurements of
the two alternate. Seconds and memory are those of a forked process, as on a device.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import typer

from benchmarks.support.documents import Document, Out, Toy, deliver, machine_line, table
from benchmarks.support.report import begun
from fedpatch.device_agent.training.forked_work import run_forked
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.formatting import size
from fedpatch.shared.onnx.export import export_onnx
from fedpatch.shared.onnx.quantisation import latency_s, quantise
from fedpatch.shared.onnx.runtime import OnnxModel
from fedpatch.shared.tasks.task import data_root, find_task
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.wire.messages import TrainPlan

BENCHMARK = "int8-models"
CELLS = (("digits", "digits' 2NN"), ("mnist", "MNIST, 2NN"), ("cifar10", "CIFAR-10 (JPEG q75), CNN"))
DATA = "shard:0/10"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, BENCHMARK, example="python -m benchmarks.training.int8_models --toy")
def run(
    turns: int = typer.Option(7, min=1, help="Measurements of each latency."),
    epochs: int = typer.Option(5, min=1, help="Epochs of training."),
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Train, export and quantise each model, and measure both."""
    torch.set_num_threads(1)  # a fork does not copy the threads of torch's pool
    document = begun(BENCHMARK, turns)
    cells = CELLS[:1] if toy else CELLS
    document["models"] = [_measured(name, title, turns, epochs) for name, title in cells]
    deliver(document, tables, out, as_json)


def tables(document: Document) -> Iterator[str]:
    """Yield the lines of the table."""
    yield machine_line(document)
    yield ""
    rows = []
    for one in document["models"]:
        for kind in ("fp32", "int8"):
            found = one[kind]
            cost = f"{one['seconds']:.2f} s, {one['peak_bytes'] / 1e6:.0f} MB" if kind == "int8" else "-"
            latency = f"{1e6 * found['latency_s']:.0f} µs"
            rows.append((one["model"], kind, size(found["size_bytes"]), latency, f"{found['user_accuracy']:.4f}", cost))
    yield from table(("model", "kind", "size", "one example", "user accuracy", "to quantise"), rows)


def _measured(name: str, title: str, turns: int, epochs: int) -> dict[str, Any]:
    task = find_task(name)
    trainer = LocalTrainer(task, task.load_data(DATA, data_root()))
    plan = TrainPlan("adam", 0.003, 20, epochs=epochs, seed=1)
    values = initial_tensors(task, 1)
    trained = trainer.run(
        values, plan, first_batch=0, stream_seed=1, on_step=lambda done, total: None, cancelled=lambda: False
    )
    assert trained is not None
    inputs, targets = trainer.test_data
    fp32 = export_onnx(trainer.model, inputs[:1].numpy()).model
    cost = json.loads(run_forked(lambda: _cost(fp32, trainer)))
    models = {"fp32": fp32, "int8": quantise(fp32, trainer.training_inputs)}
    opened = {kind: OnnxModel(model, kind) for kind, model in models.items()}
    taken = [{kind: latency_s(model, inputs.numpy()) for kind, model in opened.items()} for _ in range(turns)]
    found: dict[str, Any] = {"model": title, "task": name, "test_examples": len(inputs), **cost}
    for kind, model in opened.items():
        found[kind] = {
            "size_bytes": len(models[kind]),
            "latency_s": statistics.median(one[kind] for one in taken),
            "user_accuracy": float(task.metric(torch.from_numpy(model.run(inputs.numpy())), targets)),
        }
    return found


def _cost(fp32: bytes, trainer: LocalTrainer) -> str:
    """Return seconds and additional peak memory of a quantisation, as JSON."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    began_at = time.perf_counter()
    quantise(fp32, trainer.training_inputs)
    seconds = time.perf_counter() - began_at
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return json.dumps({"seconds": seconds, "peak_bytes": peak - resident})


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.training.int8_models")
