"""The trackers with the real packages, each if it is installed: the records of a run and its resume in the store."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun
from fedpatch.shared.trackers.tracking import Tracking, make_trackers

RUN = TrackedRun("20261124-091500-5f3a2c", "run", "digits", {"task": "digits", "rounds": 3, "broker": "x" * 600}, "1")
ROUNDS = [
    TrackedRound(number, {"user_accuracy": number / 4, "seconds/train": float(number)}, {}) for number in (1, 2, 3)
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Ignore warnings that these packages raise about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def track(name: str, rounds: list[TrackedRound], outcome: str) -> None:
    lines: list[str] = []
    followed = Tracking(make_trackers([name]), RUN, lines.append)
    for one in rounds:
        followed.log(one)
    followed.end(outcome, 100.0)
    assert lines == []


def test_tensorboard_reads_the_scalars_of_a_run_and_its_resume(tmp_path):
    pytest.importorskip("tensorboard", reason="make extras")
    track(f"tensorboard:{tmp_path}", ROUNDS[:2], "interrupted")
    track(f"tensorboard:{tmp_path}", ROUNDS[2:], "max_rounds")
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    read = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    values = [(one.step, float(one.tensor_proto.float_val[0])) for one in read.Tensors(RUN.id, "user_accuracy")]
    assert values == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert json.loads((tmp_path / RUN.id / "settings.json").read_text("utf-8"))["rounds"] == 3


def test_mlflow_has_one_run_for_a_run_and_its_resume(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="make extras")
    place = f"sqlite:///{tmp_path}/mlflow.db"
    track(f"mlflow:{place}", ROUNDS[:2], "interrupted")
    client = mlflow.MlflowClient(tracking_uri=place)
    experiment = client.get_experiment_by_name("fedpatch")
    assert client.search_runs([experiment.experiment_id])[0].info.status == "KILLED"
    track(f"mlflow:{place}", ROUNDS[2:], "max_rounds")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (RUN.id, "FINISHED")
    assert run.data.params["rounds"] == "3"
    assert len(run.data.params["broker"]) == 500
    history = client.get_metric_history(run.info.run_id, "user_accuracy")
    assert [(one.step, one.value) for one in history] == [(1, 0.25), (2, 0.5), (3, 0.75)]


def _records(file: bytes) -> Iterator[bytes]:
    """Yield the records of a short wandb file: 7 bytes, then per record a checksum, a length and the type 1 (whole record)."""
    offset = 7
    while offset < len(file):
        length, kind = struct.unpack_from("<HB", file, offset + 4)
        assert kind == 1
        yield file[offset + 7 : offset + 7 + length]
        offset += 7 + length


def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="make extras")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    track(f"wandb:{tmp_path}", ROUNDS, "max_rounds")
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    from wandb.proto import wandb_internal_pb2

    steps = []
    for data in _records(next(folder.glob("run-*.wandb")).read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            steps.append({item.key or item.nested_key[0]: item.value_json for item in record.history.item})
    assert [(row["_step"], row["user_accuracy"]) for row in steps] == [("1", "0.25"), ("2", "0.5"), ("3", "0.75")]


def test_trackers_of_this_environment_are_loaded_only_where_they_are_used():
    program = "import sys, fedpatch.coordinator.settings; print(sorted({'tensorboard', 'mlflow', 'wandb'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
