"""What the agent does to come to a model by steps: whom it listens to, what it hands to training, what stays on the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.device_agent.job.job_effects import Effect, JobState
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.device_agent.state.model_cache import DIRECTORY, Held, ModelCache
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunked_transfer import cut
from fedpatch.shared.wire.messages import Cancel, WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.delta_jobs import BLOBS, DELTAS, STEP_BLOBS, STEPS, VERSIONS, ask, asked
from tests.device_agent.effect_runners import performer_of
from tests.device_agent.fake_link import Wire
from tests.device_agent.jobs import KEY
from tests.support.specs import model, said

HELD = Held(VERSIONS[1].digest, VERSIONS[1].schema, "fp32+zstd", 250)


class Listening(Wire):
    """A link that knows what it listens to."""

    def __init__(self) -> None:
        super().__init__()
        self.filters: set[str] = set()

    def subscribe(self, *filters: str) -> None:
        """From now on."""
        self.filters.update(filters)

    def unsubscribe(self, *filters: str) -> None:
        """No longer."""
        self.filters.difference_update(filters)


class Trainer:
    """A training process that does nothing but remember what it was told."""

    def __init__(self) -> None:
        self.told: list[TrainCommand] = []

    def train(self, command: TrainCommand) -> None:
        """One more."""
        self.told.append(command)

    def cancel(self) -> None:
        """Nothing is under way."""


class Device:
    """An agent's hands, in a directory where version 1 is held."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.start()
        self.held = ModelCache(directory / DIRECTORY)
        self.held.write(HELD, BLOBS[1])

    def start(self) -> None:
        """Switched on, perhaps again."""
        self.wire, self.trainer, self.job = Listening(), Trainer(), Job(max_blob_bytes=10_000)
        self.hands = performer_of(self.directory, self.job, self.wire, self.trainer)

    def ask(self, request: WorkRequest | None = None) -> None:
        """The request reaches the agent."""
        self.perform(ask(self.job, self.hands.held_version, request))

    def arrive(self, *blobs: bytes) -> None:
        """All chunks of them."""
        for blob in blobs:
            for index in range(model(blob).chunk_count):
                self.perform(self.job.on_chunk(cut(blob, model(blob), index), 12.0))

    def perform(self, effects: list[Effect]) -> None:
        """All of them."""
        self.hands.perform(effects)

    @property
    def downloads(self) -> set[str]:
        """Digests of what lies there."""
        return {path.stem for path in (self.directory / "downloads").iterdir()}


@pytest.fixture
def device(tmp_path):
    """Idle."""
    return Device(tmp_path)


def filters(*manifests) -> set[str]:
    """Where the chunks of these are published."""
    return {topics.model_chunks_filter("lab", one.digest) for one in manifests}


def test_listens_for_the_steps_from_what_is_held_and_trains_on_them(device):
    """And for nothing else; the training process is told where they lie, and to hold what they lead to."""
    device.ask()
    assert device.wire.filters == filters(*STEPS[1:])
    device.arrive(*STEP_BLOBS[1:])
    assert device.wire.filters == set()
    [command] = device.trainer.told
    assert (command.held, command.model_path, command.base) == (VERSIONS[1].digest, "", VERSIONS[-1].digest)
    assert [step.delta for step in command.steps] == list(DELTAS[1:])
    assert [Path(step.path).read_bytes() for step in command.steps] == list(STEP_BLOBS[1:])
    assert command.hold
    device.perform(device.job.on_message(said(Cancel("late")), 13.0))
    assert device.downloads == set()


def test_finds_what_had_come_before_a_reboot(device):
    """A step that is whole is not downloaded twice; then only the other is asked for."""
    device.ask()
    device.arrive(STEP_BLOBS[1])
    device.start()
    device.ask()
    assert device.trainer.told == []
    device.arrive(STEP_BLOBS[2])
    assert len(device.trainer.told) == 1


def test_downloads_nothing_where_the_model_is_held(device):
    """A round that is asked for once more after a reboot in the middle of its training."""
    device.held.write(replace(HELD, version=VERSIONS[-1].digest), BLOBS[-1])
    device.ask()
    [command] = device.trainer.told
    assert (command.held, command.steps) == (VERSIONS[-1].digest, ())
    assert (device.wire.filters, device.downloads) == (set(), set())


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"torn")], ids=["gone", "torn"])
def test_takes_the_whole_model_where_nothing_is_held(device, spoil):
    """Or nothing that can be read."""
    spoil(device.held.path)
    device.ask()
    assert device.wire.filters == filters(VERSIONS[-1])
    device.arrive(BLOBS[-1])
    [command] = device.trainer.told
    assert (command.held, Path(command.model_path).read_bytes()) == ("", BLOBS[-1])


def test_takes_the_whole_model_after_steps_that_led_nowhere(device, caplog):
    """In the same round; what was held is deleted, and the log says why."""
    device.ask()
    device.arrive(*STEP_BLOBS[1:])
    device.perform(device.job.training_failed(KEY, FailReason.DOWNLOAD, "no way to it"))
    assert "no way to it; downloading the whole model" in caplog.text
    assert device.hands.held_version == ""
    assert device.wire.filters == filters(VERSIONS[-1])
    device.arrive(BLOBS[-1])
    assert [command.held for command in device.trainer.told] == [VERSIONS[1].digest, ""]
    assert device.job.state is JobState.TRAINING


def test_takes_the_whole_model_where_the_disk_spoilt_a_step(device, caplog):
    """Which shows before training is told."""
    device.ask()
    device.arrive(STEP_BLOBS[1])
    path = device.directory / "downloads" / f"{STEPS[1].digest}.part"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    device.arrive(STEP_BLOBS[2])
    assert device.trainer.told == []
    assert "what was downloaded is damaged" in caplog.text
    assert device.wire.filters == filters(VERSIONS[-1])
    assert device.hands.held_version == VERSIONS[1].digest


@pytest.mark.parametrize(
    ("request_", "hold"),
    [
        (asked(), True),
        (replace(asked(), deltas=(), encoding="delta-int8"), True),
        (replace(asked(), deltas=()), False),
    ],
    ids=["steps now", "steps later", "no steps"],
)
def test_holds_a_model_where_steps_are_to_be_expected(device, request_, hold):
    """A run whose updates travel as they are never names any; its models cost the card one writing less."""
    device.held.forget()
    device.ask(request_)
    device.arrive(BLOBS[-1])
    assert device.trainer.told[0].hold is hold
