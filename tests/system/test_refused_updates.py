"""Updates are accepted or refused for the right reason, and a refused update changes nothing for other devices."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.chunks import Chunk, encode_chunk
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Committed, Envelope, Refused
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.support import oracle
from tests.support.brokers import Mosquitto, client
from tests.system.fleet import Fleet
from tests.system.misdeeds import MAX_MODEL_MIB, MISDEEDS, NOISE
from tests.system.oracle_task import REFERENCE, TASK, build_model, device_data
from tests.system.rogue import Misdeed, Rogue, Update, Upload, Verdict
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker]

STRATEGY, PRIVATE, SEED = "fedavg-adam", "affine", 5
DATA = "n=37,test=30,seed=1"
TOLERANCE = 1e-5
SCHEMA = schema_of(build_model())
TRAVELLING = parse_policy(PRIVATE).public(SCHEMA).with_moments(MOMENTS)


NOT_OURS = (
    b"",  # this clears a retained message, so it does not count as a message
    b"\x00 not msgpack",
    encode(Envelope(Refused("0" * 64, RefuseReason.LATE)))[:-5],
    NOISE,
)
NO_CHUNKS = (b"fp", NOISE[:500], encode_chunk(Chunk("0" * 64, 0, 1, b"data"))[:-1])


@dataclass(frozen=True)
class Played:
    """A run with misdeeds, each by another rogue or all by one rogue; `devices` has the registry's data."""

    summary: RunSummary
    verdicts: list[Verdict]
    state: ServerState
    devices: dict[str, DeviceInfo]


@dataclass(frozen=True)
class Stage:
    """An honest agent and a rogue at a broker."""

    fleet: Fleet
    rogue: Rogue
    directory: Path

    def play(self, misdeeds: Sequence[Misdeed]) -> Played:
        """Run one round for each misdeed, all by the same rogue."""
        self.rogue.appear()
        return self._run(2, len(misdeeds), 0.5, lambda: self.rogue.play(misdeeds))

    def play_all_at_once(self, misdeeds: Sequence[Misdeed]) -> Played:
        """Run two rounds; in the first, another rogue commits each misdeed."""
        with ExitStack() as stack, ThreadPoolExecutor(len(misdeeds)) as pool:
            rogues = []
            for device in rogue_names(len(misdeeds)):
                voice = stack.enter_context(client(self.fleet.broker, device))
                rogues.append(Rogue(voice, self.fleet.name, device, TASK.name, SCHEMA, TRAVELLING))
                rogues[-1].appear()

            def all_of_them() -> list[Verdict]:
                played = [pool.submit(rogue.play, [misdeed]) for rogue, misdeed in zip(rogues, misdeeds, strict=True)]
                return [verdict for one in played for verdict in one.result()]

            # A quorum so small that the honest device alone suffices.
            played = self._run(len(rogues) + 1, 2, 1 / (len(rogues) + 1), all_of_them)
            for rogue in rogues:
                rogue.leave()
            return played

    def _run(self, devices: int, rounds: int, quorum: float, misbehave: Callable[[], list[Verdict]]) -> Played:
        terms = {"strategy": STRATEGY, "private": PRIVATE, "seed": SEED, "rounds": rounds, "devices": devices}
        terms |= {"quorum": quorum, "max_model_mib": MAX_MODEL_MIB, "quarantine_after": 0}
        # The oracle has no bound; an encoding without steps lets a rogue send any values.
        terms |= {"norm_bound": "off", "encoding": "fp32+zstd"}
        settings = self.fleet.settings(Path(tempfile.mkdtemp(dir=self.directory)), REFERENCE, **terms)
        with ThreadPoolExecutor(1) as pool:
            verdicts = pool.submit(misbehave)
            summary = start_run(settings, Silent())
            state, _, _ = load_checkpoint(run_directory(settings.state_dir, summary.run))
            with Registry(settings.state_dir / REGISTRY_FILE) as registry:
                known = {info.id: info for info in registry.devices()}
            return Played(summary, verdicts.result(), state, known)


def rogue_names(count: int) -> list[str]:
    return [f"rogue-{number:02}" for number in range(count)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One agent and one rogue for all tests."""
    directory = tmp_path_factory.mktemp("fleet")
    with Mosquitto() as broker, client(broker.url, "rogue") as voice, Fleet(broker.url, directory) as fleet:
        fleet.start("honest", REFERENCE, DATA)
        fleet.wait_ready()
        yield Stage(fleet, Rogue(voice, fleet.name, "rogue", TASK.name, SCHEMA, TRAVELLING), directory)


@pytest.fixture(scope="module")
def played(stage: Stage) -> Played:
    """A run with all misdeeds, in the order of MISDEEDS."""
    return stage.play_all_at_once([misdeed for _, misdeed in MISDEEDS.values()])


@pytest.mark.parametrize("name", MISDEEDS)
def test_misdeed_is_refused_answered_and_counted(played, name):
    """The device receives the reason, the round's record has it, and the round continues with the honest device alone."""
    number = list(MISDEEDS).index(name)
    reason, _ = MISDEEDS[name]
    verdict, record = played.verdicts[number], played.summary.rounds[0]
    assert isinstance(verdict.answer, Refused)
    assert (verdict.answer.reason, verdict.answer.digest) == (reason, verdict.digest)
    assert verdict.answer.detail
    assert record.offenders[rogue_names(len(MISDEEDS))[number]] == reason
    reasons = Counter(reason for reason, _ in MISDEEDS.values())
    assert record.refused == record.failures == reasons
    assert (record.outcome, record.accepted, record.reported) == ("aggregated", len(MISDEEDS) + 1, 1)
    assert record.num_examples == len(device_data(DATA).train_x)


def test_offender_is_not_invited_again(played):
    second = played.summary.rounds[1]
    assert (second.outcome, second.cohort, second.reported, second.offenders) == ("aggregated", 1, 1, {})


def test_refusal_of_a_private_value_names_it(played):
    answers = [verdict.answer for verdict in played.verdicts[:2]]
    assert all(isinstance(answer, Refused) for answer in answers)
    assert "'bn1.weight'" in answers[0].detail
    assert "'bn2.bias:exp_avg'" in answers[1].detail


def test_registry_counts_refusals_by_device(played):
    for device, (reason, _) in zip(rogue_names(len(MISDEEDS)), MISDEEDS.values(), strict=True):
        rogue = played.devices[device]
        assert (rogue.accepted, rogue.refused, rogue.reported, rogue.last_reason) == (1, 1, 0, reason)
    honest = played.devices["honest"]
    assert (honest.accepted, honest.refused, honest.reported, honest.last_reason) == (2, 0, 2, "")


def test_model_is_that_of_the_honest_device_alone(played):
    honest = oracle.arrays_of(device_data(DATA))
    rounds = [["honest"]] * 2
    rate = TASK.learning_rates[STRATEGY]
    history = oracle.run_mtfl(
        build_model, {"honest": honest}, rounds, STRATEGY, PRIVATE, rate, batch_size=TASK.batch_size, seed=SEED
    )
    last = history[-1]
    moments = oracle.flat(last.moments)
    assert played.state.tensors.keys() == {*last.omega, *moments}
    for name, value in {**last.omega, **moments}.items():
        np.testing.assert_allclose(played.state.tensors[name], value, rtol=0, atol=TOLERANCE, err_msg=name)


def test_honest_update_of_a_former_offender_is_committed(stage):
    played = stage.play([Update.upload])
    assert [type(verdict.answer) for verdict in played.verdicts] == [Committed]
    assert (played.summary.rounds[0].reported, played.summary.rounds[0].refused) == (2, {})
    assert played.devices["rogue"].reported == 1


def test_foreign_bytes_are_ignored_and_counted(stage):
    def misbehave(update: Update) -> Upload:
        for payload in NOT_OURS:
            stage.rogue.publish(payload)
        for payload in NO_CHUNKS:
            stage.rogue.send_as_chunk(payload)
        return update.upload()

    played = stage.play([misbehave, Update.upload])
    assert [type(verdict.answer) for verdict in played.verdicts] == [Committed, Committed]
    assert [record.reported for record in played.summary.rounds] == [2, 2]
    assert played.devices["rogue"].ignored == len(NOT_OURS) - 1 + len(NO_CHUNKS)
    assert played.devices["honest"].ignored == 0
