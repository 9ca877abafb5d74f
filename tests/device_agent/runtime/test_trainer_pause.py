"""The real training process, told to wait while a round is trained."""

from __future__ import annotations

import queue
import time
from dataclasses import replace

import pytest

from fedpatch.device_agent.job.training_messages import TrainCancelled, Trained, TrainProgress
from fedpatch.device_agent.training.training_process import PROGRESS_EVERY_S
from tests.device_agent.device_rounds import SGD, Scene, key
from tests.device_agent.toy_tasks import SLOW
from tests.device_agent.watched_training_process import TIMEOUT_S, Watched

QUIET_S = 20 * PROGRESS_EVERY_S
"""A training that goes on tells of it twenty times meanwhile."""


@pytest.fixture
def idle(installed, tmp_path):
    """A process of its own."""
    watched = Watched(tmp_path)
    watched.trainer.start()
    yield watched
    watched.trainer.stop()


def held_at(watched: Watched) -> int:
    """The step after which none is told of for a while; a training that nothing holds has none."""
    done, give_up_at = 0, time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_at:
        try:
            event = watched.events.get(timeout=QUIET_S)
        except queue.Empty:
            return done
        assert isinstance(event, TrainProgress), event
        done = event.done
    pytest.fail(f"{done} steps, and still they are taken")


def test_a_pause_holds_the_steps_until_it_goes_on(idle, tmp_path):
    """The process lives on, and takes further steps of the same training only when it is told to."""
    idle.trainer.train(Scene(tmp_path, SLOW, replace(SGD, steps=100_000), "none").command())
    idle.until_training()
    idle.trainer.pause()
    done = held_at(idle)
    assert idle.trainer.pid is not None
    idle.trainer.go_on()
    following = idle.next()
    assert isinstance(following, TrainProgress), following
    assert done < following.done < 100_000
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
