"""The real training process, told to wait while a round is trained."""

from __future__ import annotations

import queue
from dataclasses import replace

import pytest

from device_agent.training_channel import TrainCancelled, Trained
from device_agent.training_process import PROGRESS_EVERY_S
from tests.device_agent.rounds import SGD, Scene, key
from tests.device_agent.toy_tasks import SLOW
from tests.device_agent.watched import Watched


@pytest.fixture
def idle(installed, tmp_path):
    """A process of its own."""
    watched = Watched(tmp_path)
    watched.trainer.start()
    yield watched
    watched.trainer.stop()


def test_a_pause_holds_the_steps_until_it_goes_on(idle, tmp_path):
    """What is under way is ended; then no step is taken, and the next one is the next."""
    idle.trainer.train(Scene(tmp_path, SLOW, replace(SGD, steps=100_000), "none").command())
    idle.until_training()
    idle.trainer.pause()
    done = 1
    with pytest.raises(queue.Empty):
        while True:
            done = idle.events.get(timeout=20 * PROGRESS_EVERY_S).done
    idle.trainer.go_on()
    assert done < idle.next().done < 100_000
    idle.trainer.cancel()
    assert isinstance(idle.outcome(), TrainCancelled)


def test_a_cancel_ends_a_pause(idle, tmp_path):
    """And the next round is not paused."""
    scene = Scene(tmp_path, SLOW, replace(SGD, steps=100_000), "none")
    idle.trainer.train(scene.command(round=8))
    idle.until_training()
    idle.trainer.pause()
    idle.trainer.cancel()
    assert idle.outcome() == TrainCancelled(key(8))
    idle.trainer.train(replace(scene, plan=SGD).command(round=9))
    assert isinstance(idle.outcome(), Trained)
