"""Exported models for tests: metadata, and the ONNX of small tasks."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from fedpatch.device_agent.models.store import ModelStore, ModelVersion
from fedpatch.shared.tasks.model_metadata import METADATA_FILE, MODEL_FILE, ModelMetadata, from_json
from fedpatch.shared.tasks.task import Task

RUN = "20260101-000000-abcdef"


def describe(round: int, model: bytes = b"", **changes: Any) -> ModelMetadata:
    known: dict[str, Any] = {
        "kind": "personal",
        "task": "toy",
        "run": RUN,
        "round": round,
        "private": "affine",
        "private_values": "trained",
        "schema": "0" * 64,
        "input_shape": (12,),
        "input_dtype": "float32",
        "output_shape": (3,),
        "class_names": (),
        "metric": "accuracy",
        "metric_goal": "max",
        "user_accuracy": 0.5,
        "user_accuracy_before": 0.25,
        "test_examples": 20,
        "parity": 0.0,
        "sha256": hashlib.sha256(model).hexdigest(),
        "size_bytes": len(model),
        "created": "2026-01-01T00:00:00Z",
        "fedpatch": "0",
        "torch": "0",
        "onnx": "0",
        "validation_accuracy": 0.75,
        "validation_examples": 12,
    }
    return ModelMetadata(**{**known, **changes})


def publish(store: ModelStore, round: int, model: bytes | None = None, **changes: Any) -> ModelVersion | None:
    """Stage a model and publish it, as a round does."""
    content = f"model of round {round}".encode() if model is None else model
    metadata = describe(round, content, **changes)
    store.stage(content, metadata)
    return store.publish(metadata.task, metadata.run, round)


def present(root: Path) -> int | None:
    """The round of the present model, found through the link `current`; its file must be whole."""
    link = root / "toy" / "current"
    if not os.path.lexists(link):
        return None
    metadata = from_json((link / METADATA_FILE).read_bytes(), "present")
    assert hashlib.sha256((link / MODEL_FILE).read_bytes()).hexdigest() == metadata.sha256
    return metadata.round


def rounds(store: ModelStore) -> list[int]:
    """Rounds of the kept models, the newest first."""
    found = [one.metadata for one in store.versions("toy")]
    return [one.round for one in found if one is not None]


def onnx_of(task: Task, shape: tuple[int, ...]) -> bytes:
    """A new model of a task."""
    import numpy as np

    from fedpatch.shared.onnx.export import export_onnx  # only here, since a store can be tested without torch

    return export_onnx(task.build_model(), np.zeros((1, *shape), np.float32)).model
