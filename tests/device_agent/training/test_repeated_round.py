"""A round that is killed and repeated gives the bits of the first time."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.device_agent.state.patch_store import PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.wire.messages import ENCODINGS, Manifest
from tests.device_agent.device_rounds import ADAM, Scene, raw_update
from tests.device_agent.disk_change_killer import Guillotine
from tests.device_agent.toy_tasks import TOY, random_data


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    return memory_path


@cache
def trainer() -> LocalTrainer:
    """A trainer with the same data each time: its result depends on its input only."""
    return LocalTrainer(TOY, random_data("ann", 23))


class Device:
    """A LocalUpdate with its own files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = PatchStore(folder / "patches")
        self.local_update = LocalUpdate(trainer(), self.store, "ann", private="none")

    def run(self, command: TrainCommand) -> Manifest:
        here = replace(command, update_path=str(self.folder / "update"))
        done = self.local_update.run(here, lambda done, total: None, lambda: False)
        assert done is not None
        return done[0]

    def tensors(self, command: TrainCommand) -> bytes:
        """The update's tensors as they travel, without the report, whose training time is never the same twice."""
        self.run(command)
        raw = raw_update(self.folder / "update", command.encoding)
        return raw[raw.index(b"tensors") :]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("private", "encoding"),
    [
        *(("affine", one) for one in ENCODINGS),
        ("none", "delta-int8"),
        ("all", "delta-int8"),
        ("names:fc2.*", "delta-int8"),
    ],
)
def test_a_round_that_is_killed_before_any_write_gives_the_same_bits_again(tmp_path, private, encoding):
    """Moments included; patch and update are written one after the other."""
    scene = Scene(tmp_path, TOY, ADAM, private)
    commands = [scene.command(round=number, encoding=encoding) for number in (1, 2, 3)]
    whole = Device(tmp_path)
    expected = [whole.tensors(commands[0])]
    shutil.copytree(tmp_path / "patches", tmp_path / "after-1" / "patches")
    expected += [whole.tensors(one) for one in commands[1:]]
    fatal = 0
    while True:
        fatal += 1
        folder = tmp_path / f"killed-{fatal}"
        shutil.copytree(tmp_path / "after-1", folder)
        if Guillotine(fatal).run(partial(Device(folder).run, commands[1])) < fatal:
            break
        again = Device(folder)
        assert [again.tensors(one) for one in commands[1:]] == expected[1:]
    assert fatal > 7
