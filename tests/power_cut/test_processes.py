"""Power cuts of real processes: a run over mosquitto with two agents, recorded by strace, and the disks of each host after it.

Every process keeps all state that it had sent, for a power cut of its host at any moment. From the disks after a cut of all
hosts at once, the run continues to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from fedpatch.coordinator.blobs.blob_store import FileBlobs
from fedpatch.coordinator.runtime.resumed_rounds import reconcile
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.run_preparation import prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.update_files import load_update
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.state.patch_store import PATCH_SUFFIX, _header
from fedpatch.device_agent.state.update_spool import UpdateSpool
from tests.power_cut.disk import Image, Record, Sync
from tests.power_cut.judging import Mark, Marks, by_round, marks_in, problems
from tests.power_cut.messages import with_marks
from tests.power_cut.tracing import read_calls, traced, wait_written
from tests.support.brokers import Mosquitto
from tests.system.commands import Command
from tests.system.fleet import AgentProcess, Fleet

pytestmark = [pytest.mark.broker, pytest.mark.system, pytest.mark.slow]

ROUNDS = 2
DEVICES = ("ann", "bob")
NOTHING_ELSE = "nothing unsynced is there"


@dataclass(frozen=True)
class Played:
    """The records of a run: of its coordinator and of each device."""

    coordinator: Record
    devices: dict[str, Record]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A run of two rounds, to its end."""
    folder = tmp_path_factory.mktemp("played").resolve()
    logs: list[Path] = []

    def wrap(command: Sequence[str]) -> list[str]:
        logs.append(folder / f"strace-{len(logs)}")
        return traced(command, logs[-1])

    coordinator, hosts = folder / "coordinator", folder / "hosts"
    coordinator.mkdir()
    with Mosquitto() as broker, Fleet(broker.url, hosts, wrap=wrap, forked=False) as fleet:
        for number, device in enumerate(DEVICES):
            # Each round's model is put in use, also if it is worse than the one before.
            fleet.start(device, "digits", f"shard:{number}/2", options=["--keep-margin", "1"])
        fleet.wait_ready()
        terms = {"task": "digits", "devices": 2, "rounds": ROUNDS, "quorum": 1.0, "wait_s": 200, "deadline_s": 200}
        command = fleet.coordinator(coordinator / "state", **terms)
        command.line = wrap(command.line)
        with command:
            assert command.done(patience_s=100).code == 0, command.err
        for agent in fleet.agents.values():
            agent.wait(partial(_publishes, agent.state_dir), "publishes its model of the last round")
            agent.terminate()
    for log in logs:
        wait_written(log)
    devices = {
        device: with_marks(Record.of(read_calls(log), hosts, hosts / f"{device}.log"))
        for device, log in zip(DEVICES, logs, strict=False)
    }
    return Played(with_marks(Record.of(read_calls(logs[-1]), coordinator)), devices)


def _publishes(state: Path) -> bool:
    """Return whether the personal model of the last round is in use."""
    models = ModelStore(state / MODELS_DIRECTORY)
    versions = [one for task in models.tasks() for one in models.versions(task)]
    return any(one.current and one.metadata is not None and one.metadata.round == ROUNDS for one in versions)


def _coordinator_keeps(state: Path, marks: Marks, end: Mark) -> Iterator[str]:
    committed, asked = by_round(marks, "committed"), by_round(marks, "asked")
    if not asked:
        return
    with Registry(state / REGISTRY_FILE) as registry:
        run = registry.run("last")
        if run.epoch < max(one["epoch"] for one in marks):
            yield f"a newer epoch was published, and the registry is at {run.epoch}"
        directory = run_directory(state, run.id)
        reconcile(registry, run.id, FileBlobs(directory), prepare(RunSettings(task="digits")), lambda line: None)
        records = {record.round: record for record in registry.rounds.records(run.id)}
        if len(records) < max(asked) - 1:
            yield f"devices had been asked for round {max(asked)}, and {len(records)} are recorded"
        for number, devices in committed.items():
            if number in records:
                lost = devices if records[number].reported < len(devices) else set()
            else:
                lost = devices - {update.device for update in registry.rounds.updates(run.id, number)}
                for device in devices - lost:
                    load_update(directory, number, device)
            if lost:
                yield f"round {number}: {sorted(lost)} had received `committed`"


def _device_keeps(device: str, place: Path, marks: Marks) -> Iterator[str]:
    state = place / device
    offers = {one["round"]: one["digest"] for one in marks if one["what"] == "offered"}
    settled = {one["round"] for one in marks if one["what"] == "settled"}
    waiting = UpdateSpool(state / "spool").load() if offers else None
    for number, digest in offers.items():
        if number not in settled and (
            waiting is None or (waiting.key.round, waiting.manifest.digest) != (number, digest)
        ):
            yield f"the update of round {number} had been offered, and {waiting} waits"
    if offers:
        # During a replacement only the former patch exists.
        rounds = [
            _header(path, path.read_bytes())[0]["round"] for path in (state / "patches").glob(f"[!.]*{PATCH_SUFFIX}*")
        ]
        if max(rounds, default=0) < max(offers):
            yield f"round {max(offers)} had been offered, and there are patches of rounds {rounds}"
    published = max((one["round"] for one in marks if one["what"] == "published"), default=0)
    models = ModelStore(state / MODELS_DIRECTORY)
    present = [
        one.metadata.round for task in models.tasks() for one in models.versions(task) if one.current and one.metadata
    ]
    if max(present, default=0) < published:
        yield f"the personal model of round {published} was in use, and there is {present}"
    if not set(present) <= offers.keys():
        yield f"the personal model of round {present} is in use, and no such update was offered"


def test_coordinator_keeps_state_that_it_sent_to_devices(played, disks):
    """Each `committed`, each epoch, each round from which it continued; without syncs the check fails."""
    assert len(by_round(_marks(played.coordinator), "committed")) == ROUNDS
    assert list(problems(played.coordinator, _coordinator_keeps, disks, every=3)) == []
    careless = played.coordinator.without(lambda sync: ".sqlite3" in sync.path)
    assert next(problems(careless, _coordinator_keeps, disks / "careless"), None)


@pytest.mark.parametrize("device", DEVICES)
def test_device_keeps_state_that_it_sent_to_its_coordinator(played, disks, device):
    """Each update that it offered, its patch, and the personal model that applications use."""

    def keeps(state: Path, marks: Marks, end: Mark) -> Iterator[str]:
        return _device_keeps(device, state.parent, marks)

    record = played.devices[device]
    whats = Counter(one["what"] for one in _marks(record))
    assert (whats["settled"], whats["published"]) == (ROUNDS, ROUNDS)
    assert list(problems(record, keeps, disks)) == []
    for directories in (True, False):
        careless = record.without(lambda sync, left_out=directories: sync.is_directory == left_out)
        assert next(problems(careless, keeps, disks / str(directories)), None)


def test_only_the_first_status_of_a_process_waits_for_the_disk(played):
    """The status changes several times in a round, each flush wears a card, and the first one has the nonce."""
    for record in played.devices.values():
        synced = [step.what.path for step in record.steps if isinstance(step.what, Sync)]
        assert synced
        assert len([path for path in synced if "status.json" in path]) == 1


def test_power_fails_everywhere_and_the_run_goes_on(played, tmp_path):
    """The coordinator has just sent `committed` to one device, and the devices wait for it; the broker forgets everything."""
    coordinator = _last(played.coordinator, lambda marks: not _has(marks, "asked", 2) and _has(marks, "committed", 1))
    coordinator.put(tmp_path / "coordinator")
    for device, record in played.devices.items():
        waiting = _last(record, lambda marks: _has(marks, "offered", 1) and not _has(marks, "settled", 1))
        (waiting.put(tmp_path / device) / device).rename(tmp_path / f"host-{device}")
    hosts = tmp_path / "hosts"
    hosts.mkdir()
    for device in DEVICES:
        (tmp_path / f"host-{device}").rename(hosts / device)
    with Mosquitto() as broker, Fleet(broker.url, hosts, forked=False) as fleet:
        agents: list[AgentProcess] = [
            fleet.start(device, "digits", f"shard:{number}/2") for number, device in enumerate(DEVICES)
        ]
        fleet.wait_ready()
        state = tmp_path / "coordinator" / "state"
        with Command(
            "fedpatch", "resume", "last", "--json", f"--state-dir={state}", f"--broker={broker.url}"
        ) as command:
            done = command.done()
        assert done.code == 0, done.err
        assert [(one["round"], one["reported"]) for one in done.document["rounds"]] == [(1, 2), (2, 2)]
        for agent in agents:
            assert "round 1 waits to be committed" in agent.log
            assert "round 1: training" not in agent.log  # it is not trained again


def _marks(record: Record) -> Marks:
    return marks_in(next(image for image in reversed(list(record.images(len(record.steps))))))


def _has(marks: Marks, what: str, number: int) -> bool:
    return any(one["what"] == what and one["round"] == number for one in marks)


def _last(record: Record, fits: Callable[[Marks], bool]) -> Image:
    found = [image for image in record.images() if NOTHING_ELSE in image.label and fits(marks_in(image))]
    if not found:
        pytest.skip("in this recording no sync fell between the two messages, so there is no such disk")
    return found[-1]
