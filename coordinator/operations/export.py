"""Exports the global model of a run as ONNX. Private tensors have their initial values, as on a device before training."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore, run_blobs
from fedpatch.coordinator.rounds.round_record import aggregated_rounds
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.storage.checkpoint import load_checkpoint, load_checkpoint_after, newest_round
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared import __version__
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.errors import FedpatchError, SchemaMismatch, UsageError
from fedpatch.shared.onnx.export import Exported, export_onnx, torch_outputs
from fedpatch.shared.onnx.runtime import OnnxModel, require_parity
from fedpatch.shared.tasks.frozen_values import new_model
from fedpatch.shared.tasks.model_metadata import MODEL_FILE, ModelMetadata, to_json
from fedpatch.shared.tasks.prepare import preparation_of
from fedpatch.shared.tasks.task import Task, find_task
from fedpatch.shared.tasks.torch_model import initial_tensors, load_tensors, schema_of
from fedpatch.shared.tensors.patches import merge, parse_policy

_SAMPLES = 64
_SEED = 0


@dataclass(frozen=True)
class GlobalExport:
    """An exported model and its metadata.

    Attributes:
        asked_round: The number of aggregated rounds whose model was requested, or all of them.
        problem: The fault of the requested checkpoint, if the model is that of an earlier round (`metadata.round`).
    """

    path: Path
    metadata_path: Path
    metadata: ModelMetadata
    asked_round: int
    problem: str = ""

    @property
    def is_earlier(self) -> bool:
        """True if this is the model of an earlier round because the requested one cannot be read."""
        return self.metadata.round < self.asked_round


def export_global_model(state_dir: Path, name: str, out: Path | None, round: int | None) -> GlobalExport:
    """Write the global model of a run. Its outputs are compared with those of torch on random inputs.

    Args:
        name: Id of the run, its beginning, or "last".
        out: File to write; None: beside the checkpoints.
        round: Number of aggregated rounds; None: all.

    Raises:
        UsageError: The run, the round or the task cannot be exported.
        SchemaMismatch: The task has changed since the run.
        ExportRefused: The model has no ONNX form.
        StateError: A file cannot be read or written.
    """
    if out is not None and out.expanduser().is_dir():
        raise UsageError(f"--out: {out} is a directory; name a file in it")
    with Registry(state_dir / REGISTRY_FILE, readonly=True) as registry:
        run = registry.run(name)
        records = registry.rounds.records(run.id)
    directory = state_dir / "runs" / run.id
    blobs = run_blobs(run.settings, directory, run.epoch)
    last = aggregated_rounds(records)
    # The round is found before the checkpoint is read: a running coordinator may write a newer one meanwhile.
    asked = max(last, newest_round(blobs)) if round is None else round
    state = load_checkpoint(blobs)[0] if round is None else load_checkpoint_after(blobs, round)
    problem = _problem_of(blobs, asked) if state.round < asked else ""
    task = find_task(str(run.settings["task"]))
    if not task.input_shape:
        raise UsageError(f"task {task.name!r} does not say its input_shape, which an export without data needs; add it")
    exported, metadata = _export(task, run, state)
    path = out.expanduser() if out else directory / MODEL_FILE
    metadata_path = path.with_name(f"{path.name}.json")
    with refusals_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, exported.model, mode=0o644)
        write_atomic(metadata_path, to_json(metadata), mode=0o644)
    return GlobalExport(path, metadata_path, metadata, asked, problem)


def _problem_of(blobs: BlobStore, round: int) -> str:
    """Return why the state after this round cannot be used."""
    try:
        load_checkpoint_after(blobs, round)
    except FedpatchError as error:
        return str(error)
    return f"{blobs.where()}: the checkpoint after round {round} was not there yet"


def _export(task: Task, run: RunInfo, state: ServerState) -> tuple[Exported, ModelMetadata]:
    module = new_model(task)
    schema = schema_of(module)
    if schema.digest != run.schema:
        raise SchemaMismatch(
            f"task {run.task!r} has schema {schema.digest[:12]} now, but run {run.id} was begun with {run.schema[:12]}; "
            "install the version of the task that it was begun with"
        )
    policy = parse_policy(run.private)
    private = policy.private_names(schema)
    initial = initial_tensors(task, int(run.settings["seed"]))
    public = {name: state.tensors[name] for name in policy.public(schema).names}
    load_tensors(module, merge(public, {name: initial[name] for name in private}))
    samples = _samples(task)
    exported = export_onnx(module, samples[:1])
    model = OnnxModel(exported.model, MODEL_FILE)
    expected = torch_outputs(module, samples)
    metadata = ModelMetadata(
        kind="global",
        task=task.name,
        run=run.id,
        round=state.round,
        private=str(policy),
        private_values="initial" if private else "none",
        schema=schema.digest,
        input_shape=task.input_shape,
        input_dtype=task.input_dtype,
        output_shape=expected.shape[1:],
        class_names=task.class_names,
        metric=task.metric_name,
        metric_goal=task.metric_goal,
        user_accuracy=None,
        user_accuracy_before=None,
        test_examples=0,
        parity=require_parity(model, samples, expected),
        sha256=hashlib.sha256(exported.model).hexdigest(),
        size_bytes=len(exported.model),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        fedpatch=__version__,
        torch=exported.torch,
        onnx=exported.onnx,
        task_ref=str(run.settings["task"]),
        prepare=preparation_of(task, task.raw_shape or task.input_shape),
        readings=task.readings,
    )
    return exported, metadata


def _samples(task: Task) -> np.ndarray:
    """Random inputs from 0 to 1; 0 and 1 where the model takes integers."""
    drawn = np.random.default_rng(_SEED).random((_SAMPLES, *task.input_shape))
    return (drawn if np.dtype(task.input_dtype).kind == "f" else drawn.round()).astype(task.input_dtype)
