"""A round that needs more memory than there is fails; the device stays, and does the next one."""

from __future__ import annotations

import os
import queue

import pytest

from fedpatch.device_agent.job.training_messages import Ready, Trained, TrainFailed, TrainProgress, WorkerSetup
from fedpatch.device_agent.runtime.training_supervisor import Died, Trainer
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.device_rounds import ADAM, Scene, key
from tests.device_agent.toy_tasks import MISHAP

TIMEOUT_S = 120


class Device:
    """A training process whose task has a mishap in the next round, when told to."""

    def __init__(self, folder) -> None:
        self.mishap = folder / "mishap"
        self.events: queue.Queue = queue.Queue()
        setup = WorkerSetup(
            "tests.device_agent.toy_tasks:MISHAP", "ann:23", str(folder), str(folder / "patches"), "ann"
        )
        self.trainer = Trainer(setup, self.events.put)
        self._scene = Scene(folder, MISHAP, ADAM, "all")

    def round(self, number: int, mishap: str = ""):
        """How a round ends."""
        if mishap:
            self.mishap.write_text(mishap)
        self.trainer.train(self._scene.command(round=number))
        while isinstance(event := self.events.get(timeout=TIMEOUT_S), Ready | TrainProgress):
            pass
        return event


@pytest.fixture(scope="module")
def device(installed, tmp_path_factory):
    """One for all tests: a mishap has no consequences for the next round."""
    device = Device(tmp_path_factory.mktemp("device"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TOY_MISHAP", str(device.mishap))
        device.trainer.start()
        yield device
        device.trainer.stop()


@pytest.mark.parametrize(("what", "words"), [("torch", "memory"), ("numpy", "Unable to allocate")])
def test_an_allocation_that_is_refused_fails_the_round_and_keeps_the_process(device, what, words):
    """RuntimeError of torch or MemoryError of numpy: what was allocated is given back, and torch need not start again."""
    device.round(1)
    pid = device.trainer.pid
    failed = device.round(2, what)
    assert isinstance(failed, TrainFailed), failed
    assert (failed.key, failed.reason) == (key(2), FailReason.TRAINING)
    assert words in failed.detail
    assert isinstance(device.round(3), Trained)
    assert device.trainer.pid == pid


def test_a_process_that_the_system_kills_costs_the_round_and_is_replaced(device):
    """As the kernel does when memory is really used up; the next round starts another."""
    device.round(1)
    pid = device.trainer.pid
    died = device.round(4, "killed")
    assert isinstance(died, Died), died
    assert died.lost == (key(4),)
    assert "SIGKILL; out of memory?" in died.detail
    trained = device.round(5)
    assert isinstance(trained, Trained) and trained.key == key(5)
    assert device.trainer.pid not in (None, pid)
