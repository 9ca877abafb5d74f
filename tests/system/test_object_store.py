"""Whole runs with checkpoints and updates on an S3 server: models equal to runs with files, and no loss by kills."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.device.light_devices import LightDevices
from fedpatch.coordinator.blobs.blob_store import BlobStore, open_blobs
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.shared.app.signals import EXIT_INTERRUPTED
from fedpatch.shared.tasks.bundled.digits import TASK
from tests.support.brokers import Mosquitto
from tests.support.s3_server import SECRET, S3Server
from tests.system.commands import Command, Done
from tests.system.stage import Stage, assert_complete

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(900)]

LIGHT = {"devices": 4, "rounds": 3, "task": "digits", "strategy": "fedavg", "private": "none", "wait_s": 100}
LIGHT |= {"quorum": 1, "grace_s": 100, "recruit_deadline_s": 100}


def blobs_of(url: str, run: str) -> BlobStore:
    return open_blobs(url, Path(run))


def model_of(done: Done, url: str | None) -> bytes:
    """Return the exported model of a run that must have ended with exit code 0."""
    assert done.code == 0, done.err
    if url is None:
        return Path(done.document["model"]).read_bytes()
    assert done.document["model"] == f"{url}/{done.document['run']}/model.npz"
    model = blobs_of(url, done.document["run"]).get("model.npz")
    assert model is not None
    return model


def test_run_in_an_object_store_has_the_model_of_a_run_with_files(mosquitto: Mosquitto, s3: str, tmp_path: Path):
    models: list[bytes] = []
    with LightDevices(broker=mosquitto.url, fleet="demo", task=TASK, count=4, processes=1) as devices:
        devices.wait_ready()
        for url in (None, s3):
            terms: dict[str, Any] = {"broker": mosquitto.url, "fleet": "demo", "state-dir": tmp_path / str(len(models))}
            options = {**LIGHT, **terms, **({"blobs": url} if url else {})}
            words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
            with Command("fedpatch", "run", "--json", *words) as coordinator:
                done = coordinator.done()
            models.append(model_of(done, url))
    assert models[0] == models[1]
    run = done.document["run"]
    directory = run_directory(tmp_path / "1", run)
    assert [path.name for path in directory.iterdir()] == ["journal.jsonl"]
    assert [name for name in blobs_of(s3, run).list() if name.startswith("checkpoint")] == [
        "checkpoint-000002.fp",
        "checkpoint-000003.fp",
    ]
    shown = done.out + done.err + (directory / "journal.jsonl").read_text("utf-8")
    assert SECRET not in shown and "writer" not in shown
    assert not [path for path in (tmp_path / "1").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.medium
@pytest.mark.faults
def test_kills_of_coordinator_and_store_lose_no_committed_update(
    stage: Stage, s3: str, s3_server: S3Server, tmp_path: Path
):
    """Round 2 is interrupted by a kill of both, round 3 by a kill of the store, which returns while an update waits for it.

    Round 2 is resumed with only the registry's files, as on another machine.
    """
    _, bob = stage.start_agents()
    stage.hold("ann", round=2, step=3)
    with stage.begin(blobs=s3) as coordinator:
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.log.count("job over: committed") == 2, "has done its part")
        coordinator.kill()
    s3_server.kill()
    s3_server.start()
    before = stage.state_dir.rename(tmp_path / "before")
    stage.state_dir.mkdir(0o700)
    for path in before.glob("registry.sqlite3*"):
        shutil.copy2(path, stage.state_dir)
    stage.hold("ann", round=3, step=2)
    with stage.resume() as coordinator:
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.log.count("job over: committed") == 3, "has done its part")
        s3_server.kill()
        restart = threading.Thread(target=s3_server.start)
        restart.start()
        stage.holds["ann"].release()
        done = coordinator.done()
        restart.join()
    assert "round 2 goes on with 1 of 2 updates" in done.err
    model = np.load(io.BytesIO(model_of(done, s3)))
    local = tmp_path / "model.npz"
    np.savez(local, **dict(model))
    assert_complete(stage, Done(done.code, json.dumps({**done.document, "model": str(local)}), done.err))


@pytest.mark.slow
def test_terminated_coordinator_waits_seconds_for_a_store_that_does_not_answer_and_loses_nothing(
    stage: Stage, s3: str, s3_server: S3Server
):
    _, bob = stage.start_agents()
    stage.hold("ann", round=2, step=3)
    with stage.begin(rounds=2, blobs=s3) as coordinator:
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.log.count("job over: committed") == 2, "has done its part")
        with s3_server.frozen():
            stage.holds["ann"].release()
            stage.fleet.agents["ann"].wait(
                lambda: stage.fleet.agents["ann"].status.get("state") == "uploading", "sends"
            )
            time.sleep(1.0)
            asked_at = time.monotonic()
            ended = coordinator.terminate()
            took_s = time.monotonic() - asked_at
    assert (ended.code, took_s < 10.0) == (EXIT_INTERRUPTED, True), (took_s, ended.err)
    done = stage.resumed()
    assert "round 2 goes on with" in done.err
    assert [(one["round"], one["reported"]) for one in done.document["rounds"]] == [(1, 2), (2, 2)]
