"""`fedpatch export`: the global model of a run as ONNX."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import open_blobs
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.checkpoint import save_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.config.load import public_values
from fedpatch.shared.onnx.runtime import OnnxModel
from fedpatch.shared.tasks import task as tasks
from fedpatch.shared.tasks.torch_model import initial_tensors, load_tensors
from fedpatch.shared.tensors.arrays import Array
from tests.coordinator.registry_builders import new_run

INPUTS = np.random.default_rng(7).random((6, 64), dtype=np.float32)
SEED = 5


@dataclass(frozen=True)
class Run:
    """A run with the checkpoints after rounds 2 and 3."""

    state_dir: Path
    id: str
    prepared: Prepared

    def tensors(self, round: int) -> dict[str, Array]:
        """Return the whole model after a round, with the initial private tensors."""
        initial = initial_tensors(self.prepared.task, SEED)
        public = {name: _moved(initial[name], round) for name in self.prepared.public.names}
        return initial | public


def _moved(array: Array, round: int) -> Array:
    """Return the array with values that look trained."""
    return (array * (1 + 0.1 * round)).astype(array.dtype)


def begin(state_dir: Path, private: str, blobs: str | None = None) -> Run:
    """Make a run with this policy of private tensors."""
    given: dict[str, Any] = {"private": private, "seed": SEED, "state_dir": state_dir, "blobs": blobs}
    settings = RunSettings(broker="mqtt://b", task="digits", **given)
    prepared = prepare(settings)
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = new_run(
            registry, 1.0e9, private=private, settings=public_values(settings), schema=prepared.schema.digest
        ).id
    made = Run(state_dir, run, prepared)
    for round in (2, 3):
        public = {name: made.tensors(round)[name] for name in prepared.public.names}
        place = open_blobs(blobs, state_dir / "runs" / run)
        save_checkpoint(place, ServerState(round, public, {}), prepared.public, {})
    return made


def outputs(run: Run, round: int) -> Array:
    """Return the outputs of the whole model after a round, computed by torch."""
    module = run.prepared.task.build_model()
    load_tensors(module, run.tensors(round))
    with torch.no_grad():
        found: Array = module.eval()(torch.from_numpy(INPUTS)).numpy()
    return found


@pytest.mark.parametrize("private", ["none", "stats", "affine", "all"])
def test_export_is_the_global_model_with_initial_private_values(fedpatch, tmp_path, private):
    run = begin(tmp_path, private)
    ended = fedpatch("export", "last", "--state-dir", tmp_path)
    assert ended.code == 0, ended.err
    path = tmp_path / "runs" / run.id / "model.onnx"
    assert ended.out.splitlines() == [f"model: {path}", f"metadata: {path}.json"]
    assert ("never left the devices" in ended.err) == (private != "none")
    np.testing.assert_allclose(OnnxModel(path.read_bytes(), "m").run(INPUTS), outputs(run, 3), atol=1e-4)
    known = json.loads(path.with_name("model.onnx.json").read_text())
    assert (known["kind"], known["round"], known["private"]) == ("global", 3, private)
    assert known["private_values"] == ("none" if private == "none" else "initial")
    assert known["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert known["class_names"] == list("0123456789")


@pytest.mark.medium
@pytest.mark.parametrize("store", ["files", "s3"])
def test_export_takes_file_and_round(fedpatch, tmp_path, request, store):
    run = begin(tmp_path / "state", "affine", request.getfixturevalue("s3") if store == "s3" else None)
    out = tmp_path / "new" / "kitchen.onnx"
    ended = fedpatch("export", run.id[:15], "--out", out, "--round", 2, "--state-dir", tmp_path / "state", "--json")
    assert ended.code == 0, ended.err
    known = json.loads(ended.out)
    assert (known["model"], known["metadata"], known["round"]) == (str(out), f"{out}.json", 2)
    assert json.loads(Path(f"{out}.json").read_text())["sha256"] == known["sha256"]
    np.testing.assert_allclose(OnnxModel(out.read_bytes(), "m").run(INPUTS), outputs(run, 2), atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("last", "--round", "1"), 2, "holds no checkpoint after round 1; there are those after: 3, 2"),
        (("nothing-like-it",), 2, "unknown run"),
    ],
    ids=["round", "run"],
)
def test_export_of_an_unknown_run_or_round_is_a_usage_error(fedpatch, tmp_path, arguments, code, problem):
    begin(tmp_path, "affine")
    ended = fedpatch("export", *arguments, "--state-dir", tmp_path)
    assert (ended.code, ended.out) == (code, "")
    assert problem in ended.err


@pytest.mark.parametrize("out", [".", "..", "/", "models"])
def test_export_into_a_directory_is_a_usage_error(fedpatch, tmp_path, monkeypatch, out):
    begin(tmp_path, "affine")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    ended = fedpatch("export", "last", "--out", out, "--state-dir", tmp_path)
    assert (ended.code, ended.err) == (2, f"fedpatch: --out: {out} is a directory; name a file in it\n")


def test_export_of_a_task_without_input_shape_is_a_usage_error(fedpatch, tmp_path, monkeypatch):
    run = begin(tmp_path, "affine")
    found = run.prepared.task
    for changed, problem in (
        (replace(found, input_shape=()), "does not say its input_shape"),
        (replace(found, build_model=torch.nn.Identity), "has schema"),
        (replace(found, input_shape=(63,)), "cannot be written as ONNX"),
    ):
        monkeypatch.setattr("fedpatch.coordinator.operations.export.find_task", lambda _ref, changed=changed: changed)
        ended = fedpatch("export", "last", "--state-dir", tmp_path)
        assert ended.code != 0
        assert problem in ended.err
        assert not (tmp_path / "runs" / run.id / "model.onnx").exists()
    assert tasks.find_task("digits") is found


def test_damaged_newest_checkpoint_gives_the_round_before_by_name_and_exit_code(fedpatch, tmp_path):
    run = begin(tmp_path, "none")
    newest = max((tmp_path / "runs" / run.id).glob("checkpoint-*.fp"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    done = fedpatch("export", "last", "--state-dir", tmp_path, "--json")
    known = json.loads(done.out)
    assert done.code == 4
    assert (known["round"], known["asked_round"]) == (2, 3)
    assert f"{newest}: is damaged" in known["problem"]
    assert f"this is the model of round 2, not of round 3: {newest}: is damaged" in done.err
    assert OnnxModel((tmp_path / "runs" / run.id / "model.onnx").read_bytes(), "m").run(INPUTS) == pytest.approx(
        outputs(run, 2), rel=1e-4, abs=1e-5
    )
    before = fedpatch("export", "last", "--state-dir", tmp_path, "--round", 2)
    assert before.code == 0
    newest.write_bytes(whole)
    good = fedpatch("export", "last", "--state-dir", tmp_path, "--json")
    assert (good.code, json.loads(good.out)["problem"]) == (0, "")


def test_model_after_a_failed_and_an_evaluate_round_is_the_last_one(fedpatch, tmp_path):
    run = begin(tmp_path, "none")
    outcomes = ("aggregated", "failed", "aggregated", "evaluated", "aggregated")
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        for number, outcome in enumerate(outcomes, 1):
            registry.rounds.finish(run.id, RoundRecord(number, outcome, 2, 2, 0, 2))
    done = fedpatch("export", "last", "--state-dir", tmp_path, "--json")
    assert (done.code, json.loads(done.out)["problem"]) == (0, ""), done.err


def test_missing_newest_checkpoint_is_known_from_the_registry(fedpatch, tmp_path):
    run = begin(tmp_path, "none")
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        for number in (1, 2, 3):
            registry.rounds.finish(run.id, RoundRecord(number, "aggregated", 2, 2, 0, 2))
    max((tmp_path / "runs" / run.id).glob("checkpoint-*.fp")).unlink()
    done = fedpatch("export", "last", "--state-dir", tmp_path)
    assert done.code == 4
    assert "not of round 3" in done.err
