"""Prediction with the personal model, by onnxruntime, beside the same model in torch: time and memory.

    python -m benchmarks.training.prediction run

Every measurement is a process of its own (training.prediction_process); torch and onnxruntime alternate, so each ratio
compares two processes that ran within seconds.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.support.documents import Document, Out, Toy, deliver
from benchmarks.support.programs import measured_apart
from fedpatch.shared.app.command import AsJson, command, make_app, run_app
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.model_metadata import METADATA_FILE, MODEL_FILE, ModelMetadata, to_json
from fedpatch.shared.tasks.task import Task, find_task

KINDS = ("torch", "onnxruntime")
FIGURES = ("first_s", "one_s", "batch_s", "resident_bytes", "peak_bytes")

app = make_app("prediction", "Times prediction with onnxruntime beside torch.")


@command(app, "run", example="python -m benchmarks.training.prediction run --turns 5")
def run(
    turns: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 7,
    tasks: Annotated[str, typer.Option(help="Which tasks, with commas.")] = "digits,mnist,cifar10",
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure every task `turns` times with each of the two."""
    if toy:
        tasks, turns = "digits", 1
    deliver({name: measure(find_task(name), turns) for name in tasks.split(",")}, _tables, out, as_json)


def _tables(document: Document) -> Iterator[str]:
    yield "| model | with | first prediction | one example | batch of 32 | resident | peak |"
    yield "|---|---|---|---|---|---|---|"
    for name, found in document.items():
        for kind in KINDS:
            yield f"| {name} | {kind} | {_row(found[kind])} |"
        ratios = [f"{found['ratios'][figure]:.1f}" for figure in FIGURES]
        yield f"| {name} | torch / onnxruntime | {' | '.join(ratios)} |"


def measure(task: Task, turns: int) -> dict[str, Any]:
    """Return medians over the turns for each kind, and of the ratios within a turn. Raises FedpatchError if a process fails."""
    with tempfile.TemporaryDirectory(prefix="fedpatch-prediction-") as directory:
        _make_model(task, Path(directory))
        process = "benchmarks.training.prediction_process"
        rounds = [{kind: measured_apart(process, kind, directory) for kind in KINDS} for _ in range(turns)]
    first = rounds[0]
    if not np.allclose(first["torch"]["outputs"], first["onnxruntime"]["outputs"], atol=1e-4):
        raise FedpatchError(f"{task.name}: the two do not give the same outputs, so their times say nothing")
    medians: dict[str, Any] = {
        kind: {figure: statistics.median(one[kind][figure] for one in rounds) for figure in FIGURES} for kind in KINDS
    }
    medians["ratios"] = {
        figure: statistics.median(one["torch"][figure] / one["onnxruntime"][figure] for one in rounds)
        for figure in FIGURES
    }
    return medians


def _make_model(task: Task, directory: Path) -> None:
    """Write a new model, in the format of a device and in the format of torch."""
    from fedpatch.shared.onnx.export import export_onnx
    from fedpatch.shared.tasks.torch_model import schema_of, to_tensors

    module = task.build_model()
    exported = export_onnx(module, np.zeros((1, *task.input_shape), task.input_dtype))
    metadata = ModelMetadata(
        kind="personal",
        task=task.name,
        run="benchmark",
        round=0,
        private="none",
        private_values="none",
        schema=schema_of(module).digest,
        input_shape=task.input_shape,
        input_dtype=task.input_dtype,
        output_shape=(),
        class_names=task.class_names,
        metric="",
        metric_goal="max",
        user_accuracy=None,
        user_accuracy_before=None,
        test_examples=0,
        parity=0.0,
        sha256=hashlib.sha256(exported.model).hexdigest(),
        size_bytes=len(exported.model),
        created="",
        fedpatch="",
        torch=exported.torch,
        onnx=exported.onnx,
    )
    (directory / MODEL_FILE).write_bytes(exported.model)
    (directory / METADATA_FILE).write_bytes(to_json(metadata))
    values: dict[str, Any] = to_tensors(module)
    np.savez(directory / "values.npz", **values)


def _row(found: Mapping[str, float]) -> str:
    cells = [f"{found['first_s']:.2f} s", f"{1e6 * found['one_s']:.0f} µs", f"{1e3 * found['batch_s']:.2f} ms"]
    return " | ".join([*cells, *(f"{found[name] / 1e6:.0f} MB" for name in ("resident_bytes", "peak_bytes"))])


if __name__ == "__main__":
    run_app(app, "prediction")
