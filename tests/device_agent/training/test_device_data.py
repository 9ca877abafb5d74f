"""Data that change between rounds: when they are read again, the reports of them, and the handling of errors."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpatch.device_agent.job.training_messages import Ready, Trained, TrainFailed, TrainProgress, WorkerSetup
from fedpatch.device_agent.runtime.training_supervisor import Trainer
from fedpatch.device_agent.state.patch_store import PatchStore
from fedpatch.device_agent.training.batches import batch_indices
from fedpatch.device_agent.training.device_data import ReloadingDataset
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.errors import DataError
from fedpatch.shared.task_checks.trial_training import require_trainable
from fedpatch.shared.tasks.task import DeviceData
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.device_rounds import SGD, Scene
from tests.device_agent.growing_task import REFERENCE, TASK

TIMEOUT_S = 120


def _write(folder: Path, text: str) -> None:
    (folder / "count").write_text(text)


@pytest.fixture
def growing(tmp_path: Path) -> ReloadingDataset:
    """A device's data, of 23 examples."""
    _write(tmp_path, "23")
    return ReloadingDataset(TASK, "count", tmp_path)


def test_data_that_stay_are_read_once(growing):
    assert len(growing.load().train_x) == 23
    assert growing.load_changed() is None


def test_data_that_changed_are_read_again_once(growing, tmp_path):
    growing.load()
    for count in (40, 12):
        _write(tmp_path, str(count))
        changed = growing.load_changed()
        assert changed is not None and len(changed.train_x) == count
        assert growing.load_changed() is None


def test_validation_data_without_classes_of_the_test_data_are_named_by_the_device(tmp_path, caplog):
    def load(spec: str, root: Path) -> DeviceData:
        x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
        y = np.arange(60) % 6
        chosen = y < 2
        return DeviceData(x, y, x + 9, y, val_x=x[chosen] + 1, val_y=y[chosen])

    names = tuple(f"class {number}" for number in range(6))
    task = replace(TASK, load_data=load, class_names=names, input_shape=(3,), data_version=None)
    ReloadingDataset(task, "", tmp_path).load()
    assert "(class 2, class 3, class 4, class 5): they choose the personal model by the others" in caplog.text


@pytest.mark.parametrize("hook", [None, lambda spec, root: None])
def test_data_without_a_version_hook_are_read_once(growing, tmp_path, hook):
    still = ReloadingDataset(replace(TASK, data_version=hook), "count", tmp_path)
    still.load()
    _write(tmp_path, "40")
    assert still.load_changed() is None


def test_data_of_which_validation_leaves_one_example_are_refused_at_the_start_by_a_model_with_batch_norm(tmp_path):
    normed = replace(
        TASK, build_model=lambda: nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 3)), validation_share=0.5
    )
    try_out = partial(require_trainable, normed, holder="device pi")
    split = replace(normed, ordered=True)
    _write(tmp_path, "2")
    with pytest.raises(DataError, match=r"batch norm .* at least 2 examples after .* for validation"):
        ReloadingDataset(split, "count", tmp_path).load(try_out)
    _write(tmp_path, "3")
    assert len(ReloadingDataset(split, "count", tmp_path).load(try_out).train_x) == 2


def test_change_during_a_read_is_seen_at_the_next_read(tmp_path):
    def load_and_write(spec, root):
        data = TASK.load_data(spec, root)
        _write(tmp_path, "31")
        return data

    _write(tmp_path, "23")
    growing = ReloadingDataset(replace(TASK, load_data=load_and_write), "count", tmp_path)
    assert len(growing.load().train_x) == 23
    changed = growing.load_changed()
    assert changed is not None and len(changed.train_x) == 31


@pytest.mark.parametrize(
    ("text", "words"), [("2x", "'2x' is no number"), ("unreadable", "task 'toy' failed with data 'count': KeyError")]
)
def test_after_an_error_they_are_tried_again(growing, tmp_path, text, words):
    growing.load()
    _write(tmp_path, text)
    for _ in range(2):
        with pytest.raises(DataError, match=words):
            growing.load_changed()
    _write(tmp_path, "24")
    changed = growing.load_changed()
    assert changed is not None and len(changed.train_x) == 24


def test_a_round_trains_on_what_there_is(growing, tmp_path):
    update = LocalUpdate(
        LocalTrainer(TASK, growing.load()), PatchStore(tmp_path / "patches"), "ann", data=growing, private="none"
    )
    scene = Scene(tmp_path, TASK, SGD, "none")
    reported = []
    for number, count in enumerate((23, 40, 5), start=1):
        _write(tmp_path, str(count))
        new_count = update.take_new_data()
        assert new_count == (None if count == 23 else count)
        done = update.run(scene.command(round=number), lambda done, total: None, lambda: False)
        assert done is not None
        reported.append((done[1].num_examples, done[1].steps))
    assert reported == [(23, 5), (40, 8), (5, 1)]


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    batch_size=st.integers(1, 20),
    steps=st.integers(1, 12),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_stream_of_batches_stays_sound_when_the_number_changes(counts, batch_size, steps, seed):
    """Each round of `steps` batches has another n: batches are full, their examples exist, none is twice in a pass.

    A round after a change uses the stream of the new n, from the place at which as many batches as before would end.
    """
    done = 0
    for n in counts:
        batches = list(batch_indices(n, batch_size, done, steps, seed))
        assert [len(batch) for batch in batches] == [min(batch_size, n)] * steps
        flat = np.concatenate(batches)
        assert ((flat >= 0) & (flat < n)).all()
        begin = done * min(batch_size, n) % n
        for start in range(-begin, len(flat), n):
            one_pass = flat[max(0, start) : start + n]
            assert len(set(one_pass.tolist())) == len(one_pass)
        done += steps


def test_a_new_example_is_used_within_two_passes():
    """After 50 batches of 10 examples there are 11: the next 22 draws include the eleventh at least once."""
    drawn = np.concatenate(list(batch_indices(11, 2, 50, 11, 3)))
    assert 10 in drawn


class _Agent:
    """The agent's side of a real training process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scene = Scene(folder, TASK, SGD, "none")
        self.events: queue.Queue = queue.Queue()
        setup = WorkerSetup(REFERENCE, "count", str(folder), str(folder / "patches"), "ann", private="none")
        self.trainer = Trainer(setup, self.events.put)

    def round(self, number: int) -> list:
        """The events of a round, except for its progress."""
        self.trainer.train(self.scene.command(round=number))
        received: list = []
        while not received or isinstance(received[-1], Ready):
            event = self.events.get(timeout=TIMEOUT_S)
            if not isinstance(event, TrainProgress):
                received.append(event)
        return received


@pytest.fixture
def agent(installed, tmp_path) -> Iterator[_Agent]:
    """An agent with 23 examples, which is ready."""
    _write(tmp_path, "23")
    agent = _Agent(tmp_path)
    agent.trainer.start()
    assert agent.events.get(timeout=TIMEOUT_S).num_examples == 23
    yield agent
    agent.trainer.stop()


@pytest.mark.medium
def test_agent_gets_new_example_counts_and_survives_unreadable_data(agent):
    (trained,) = agent.round(1)
    assert isinstance(trained, Trained) and trained.report.num_examples == 23
    process = agent.trainer.pid
    _write(agent.folder, "30")
    ready, trained = agent.round(2)
    assert (ready.task, ready.num_examples, trained.report.num_examples) == ("toy", 30, 30)
    _write(agent.folder, "30 or so")
    (failed,) = agent.round(3)
    assert isinstance(failed, TrainFailed)
    assert (failed.reason, failed.detail) == (FailReason.TRAINING, "toy: '30 or so' is no number of examples")
    _write(agent.folder, "31")
    ready, trained = agent.round(4)
    assert (ready.num_examples, trained.report.num_examples, agent.trainer.pid) == (31, 31, process)
